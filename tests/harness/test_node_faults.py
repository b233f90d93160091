"""How nodes end, and what becomes of their rows: without a JVM and without TensorFlow."""

from __future__ import annotations

import re
import signal
import time

import node_functions
import pytest
from conftest import seconds
from harness import CONSTANTS, fit, metrics_of, session
from spark_of_processes import ProcessSpark

from tfos_ml import errors

pytestmark = pytest.mark.usefixtures("without_spark")
WINDOW, CHUNK = 32 << 20, 4 << 20
SMALLER = {"tfos_ml.agent.feeder.WINDOW_BYTES": WINDOW, "tfos_ml.data.spool.CHUNK_BYTES": CHUNK}
LARGE = {"rows": 20_000, "width": 1000}  # 8 kB each: 160 MB, five times the window


@pytest.fixture(params=["barrier", pytest.param("plain", marks=pytest.mark.chaos)])
def spark(request):
    """A session; ``ledger/`` has faults of plain jobs in make test."""
    return session(request.param)


@pytest.fixture
def barrier_spark():
    return session()


@pytest.fixture
def small_window():
    """A session whose nodes hold fewer rows that wait."""
    return ProcessSpark(None, {**CONSTANTS, **SMALLER})


# Ends


@pytest.mark.parametrize(
    ("how", "number", "exit_code", "signal_name"),
    [
        ("exit", 0, 0, None),  # what it has not trained yet would be lost without a word
        ("C exit", 0, 0, None),
        ("sys.exit", 3, 3, None),
        ("library", 0, 0, None),
        ("handler", 0, 0, None),
        ("signal", signal.SIGSEGV, None, "SIGSEGV"),
    ],
)
def test_exit_code_or_signal_is_reported(barrier_spark, how, number, exit_code, signal_name):
    with pytest.raises(errors.NodeExitError) as caught:
        fit(barrier_spark, node_functions.die, {"how": how, "number": int(number)})
    assert (caught.value.exit_code, caught.value.signal) == (exit_code, signal_name)
    assert "last words" in caught.value.log_tail


def test_the_first_failure_is_raised_and_the_next_fit_works(spark):
    with pytest.raises(errors.TrainFnError) as caught:
        fit(spark, node_functions.fail_on_one, nodes=3)
    error = caught.value
    assert (error.role, error.index, error.exit_code) == ("worker", 1, 1)
    assert "ZeroDivisionError: the user's own mistake" in error.message
    assert 'raise ZeroDivisionError("the user\'s own mistake")' in error.traceback
    assert "tfos_ml/worker/main.py" not in error.traceback
    result = fit(spark, node_functions.read, nodes=2)
    assert [node["rows"] for node in metrics_of(result.reports).values()] == [60, 60]


def test_what_a_node_reported_just_before_it_failed_is_known(spark):
    reports = []
    with pytest.raises(errors.TrainFnError):
        fit(spark, node_functions.report_and_fail, nodes=2, reported=reports.extend)
    of_chief = [report for report in reports if report.label == "worker:0"]
    assert [(report.epoch, report.metrics["loss"]) for report in of_chief] == [(0, 1.0), (1, 1 / 2), (2, 1 / 3)]


def test_barrier_that_not_all_reach_is_an_error_at_once(spark):
    with pytest.raises(errors.CollectiveCallError, match="worker:1': 'has ended'"):
        fit(spark, node_functions.mismatched_barriers, nodes=2)


@pytest.mark.parametrize("how", ["exit", "library"])
def test_a_process_that_exits_too_early_is_named_and_its_node_begun_again(spark, how):
    with pytest.raises(errors.NodeExitError, match="before (its|the) train function had returned") as caught:
        fit(spark, node_functions.exit_at_first, {"how": how}, nodes=2)
    assert (caught.value.role, caught.value.index, caught.value.exit_code) == ("worker", 1, 0)
    if how == "library":
        assert "node_functions.py, line" in str(caught.value)
        assert "in exit_of_library" in str(caught.value)
    result = fit(spark, node_functions.exit_at_first, {"how": how}, nodes=2, restarts=1)
    assert [node["rows"] for node in metrics_of(result.reports).values()] == [60, 60]


@pytest.mark.parametrize("call", ["sys.exit()", "exit(0)"])
def test_sys_exit_of_the_train_function_itself_is_its_end(barrier_spark, call):
    result = fit(barrier_spark, node_functions.leave, {"call": call})
    assert metrics_of(result.reports)["worker:0"]["rows"] == 60


def test_a_process_that_has_failed_and_does_not_end_is_killed(barrier_spark):
    began = time.monotonic()
    with pytest.raises(errors.TrainFnError, match="own mistake"):
        fit(barrier_spark, node_functions.linger, {"how": "raise"}, nodes=2, silence=8.0)
    assert time.monotonic() - began < seconds(20)


def test_a_process_that_has_returned_and_does_not_end_is_killed(barrier_spark):
    result = fit(barrier_spark, node_functions.linger, {"how": "return"}, silence=8.0)
    assert "worker:0 had not ended 8 s after its train function had" in result.reports[0]["ended_at_work"]
    assert metrics_of(result.reports)["worker:0"]["rows"] == 60


def test_any_error_of_a_supervisor_names_the_node_and_its_cause_and_the_fit_is_restarted(small_window):
    rows = {"rows": 6000, "width": 1000}  # more than the window, so that the supervisor writes when its limit is set
    result = fit(small_window, node_functions.starve_at_first, nodes=2, restarts=1, **rows)
    assert [node["rows"] for node in metrics_of(result.reports).values()] == [6000, 6000]
    ended = result.attempts[0].ended
    assert re.search("NodeLostError: worker:1 .* failed: OSError: .*Too many open files.*ulimit -n", ended), ended


# Slots


def test_a_restart_for_which_a_lost_host_has_left_no_room_tells_both_causes(barrier_spark):
    slots = barrier_spark.sparkContext._jsc.sc().maxNumConcurrentTasks

    def lose_a_host(reports):
        slots.return_value = 1

    began = time.monotonic()
    said = r"cannot be repeated after TrainFnError \(worker:\d on .*own mistake.*needs 2 task slots at once, but .* 1"
    with pytest.raises(errors.NotEnoughSlotsError, match=said):
        fit(barrier_spark, node_functions.report_and_fail, nodes=2, restarts=2, reported=lose_a_host)
    assert time.monotonic() - began < seconds(15)  # of a reservationTimeout of 30 s on a quiet machine


# Rows


@pytest.mark.slow
def test_more_rows_than_the_window_are_replayed(small_window):
    result = fit(small_window, node_functions.read, epochs=2, **LARGE)
    found = metrics_of(result.reports)["worker:0"]
    assert (found["rows"], found["sum"]) == (40_000, 2 * sum(range(20_000)))


@pytest.mark.slow
def test_rows_that_wait_are_held_within_a_bound(small_window):
    found = metrics_of(fit(small_window, node_functions.watch_spool, **LARGE).reports)["worker:0"]
    assert found["rows"] == 20_000
    assert 0 < found["most"] <= WINDOW + 4 * CHUNK


@pytest.mark.slow
def test_rows_that_nobody_reads_are_an_error_in_time(small_window):
    with pytest.raises(errors.FeedTimeoutError, match="feedTimeout=3") as caught:
        fit(small_window, node_functions.never_read, feed_timeout=3.0, **LARGE)
    assert (caught.value.role, caught.value.index) == ("worker", 0)


@pytest.mark.parametrize("terminates", [True, False])
def test_a_node_that_wants_no_more_rows_ends_well(small_window, terminates):
    result = fit(small_window, node_functions.stop_early, {"terminates": terminates}, **LARGE)
    assert [node["label"] for node in result.reports] == ["worker:0"]
