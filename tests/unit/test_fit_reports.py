"""Each epoch of a fit counts once, whatever a restart trains again."""

from tfos_ml.driver.fit_reports import FitReports
from tfos_ml.protocol.messages import Report


def report(epoch, label="worker:0"):
    return Report({"loss": 0.5}, epoch, None, 0.0, label)


def test_epochs_that_a_restart_trains_again_do_not_count_again():
    taken = []
    reports = FitReports([taken.extend])
    reports.begin()
    reports.take([report(0), report(1), report(None)])
    assert taken == [report(0), report(1), report(None)]
    taken.clear()
    reports.begin()
    reports.take([report(1), report(2), report(1, "evaluator:0")])
    reports.take([report(None), report(None)])
    assert taken == [report(2), report(1, "evaluator:0"), report(None), report(None)]
