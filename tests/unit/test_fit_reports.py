"""Each report of a fit counts once, whatever a node's result and a restart repeat."""

from tfos_ml.driver.fit_reports import FitReports


def report(epoch, number=None, label="worker:0"):
    return {"label": label, "epoch": epoch, "shown": True, **({} if number is None else {"number": number})}


def test_what_came_live_is_not_taken_from_the_result_again():
    reports = FitReports()
    reports.begin()
    live = [report(0, 0), report(0, 1), report(None, 2)]
    assert reports.new(live) == live
    late = report(1, 3)
    assert reports.new([*live, late]) == [late]
    assert reports.new([report(0, 0, "evaluator:0")])


def test_epochs_that_a_restart_trains_again_do_not_count_again():
    reports = FitReports()
    reports.begin()
    reports.new([report(0, 0), report(1, 1)])
    reports.begin()
    assert reports.new([report(1, 0), report(2, 1)]) == [report(2, 1)]
    system = {"label": "worker:0", "epoch": None, "shown": False}
    assert reports.new([system, system]) == [system, system]
