"""Each epoch of a fit counts once, whatever a restart trains again."""

from tfos_ml.driver.fit_reports import FitReports


def report(epoch, label="worker:0"):
    return {"label": label, "epoch": epoch, "shown": True}


def test_epochs_that_a_restart_trains_again_do_not_count_again():
    reports = FitReports()
    reports.begin()
    assert reports.new([report(0), report(1), report(None)]) == [report(0), report(1), report(None)]
    reports.begin()
    assert reports.new([report(1), report(2), report(1, "evaluator:0")]) == [report(2), report(1, "evaluator:0")]
    system = {"label": "worker:0", "epoch": None, "shown": False}
    assert reports.new([system, system]) == [system, system]
