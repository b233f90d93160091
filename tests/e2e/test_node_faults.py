"""How the process of a node ends, or is ended, and what the user is told of it; without TensorFlow."""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import wait_until
from node_functions import evaluate_once_more, work
from settings import setting
from supervisors import supervisor_of

from tfos_ml import TFCluster, TFEstimator, errors
from tfos_ml.driver import session_facts
from tfos_ml.protocol.messages import Exported
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.stages import cluster_estimator

ROWS = 120
SILENCE = 8.0  # seconds after which a process that gives no sign of life counts as stuck; users have 120


@pytest.fixture(params=["barrier", "plain"])
def jobs(request, spark, monkeypatch):
    """A session whose jobs are barrier jobs, or plain ones as under dynamic allocation."""
    monkeypatch.setattr(session_facts, "allocates_dynamically", lambda spark: request.param == "plain")
    return spark


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(cluster_estimator, "NodeTask", partial(NodeTask, heartbeat_timeout=SILENCE))


def fit(spark, train_fn, how="", nodes=1, **params):
    df = spark.range(0, ROWS, 1, 4).withColumnRenamed("id", "features")
    return TFEstimator(trainFn=train_fn, tfArgs={"how": how}, clusterSize=nodes, verbose=0, **params).fit(df).summary


def read(args, ctx):
    """Read all rows, and tell their numbers."""
    feed, rows = ctx.get_data_feed(), []
    while not feed.should_stop():
        rows += [row[0] for row in feed.next_batch(50)]
    ctx.summarize({"read": [int(number) for number in rows]})


def rows_of(summary):
    return sorted(number for node in summary.nodes for number in node["read"])


def exit_of_library():
    """End the program, as command lines do."""
    sys.exit(0)


def die(args, ctx):
    """End the process, after some last words."""
    print("last words", flush=True)
    if args.how == "sys.exit of 3":
        raise SystemExit(3)
    if args.how == "exit of C":
        ctypes.CDLL(None).exit(0)
    if args.how == "handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGSEGV)
    signal.pause()


@pytest.mark.parametrize(
    ("how", "exit_code", "signal_name"),
    [
        ("sys.exit of 3", 3, None),
        ("exit of C", 0, None),  # what it has not trained yet would be lost without a word
        ("handler", 0, None),
        ("signal", None, "SIGSEGV"),
    ],
)
def test_exit_code_or_signal_is_reported(spark, how, exit_code, signal_name):
    with pytest.raises(errors.NodeExitError) as caught:
        fit(spark, die, how)
    assert (caught.value.exit_code, caught.value.signal) == (exit_code, signal_name)
    assert "last words" in caught.value.log_tail


def fail_at_first(args, ctx):
    """Worker 1 comes to its end amid its rows in the first attempt, by itself or with its supervisor."""
    if ctx.task_index == 1 and ctx.restart_count == 0:
        ctx.get_data_feed().next_batch(10)
        if args.how == "exit":
            exit_of_library()
        verb, victim = args.how.split()
        pid = os.getpid() if victim == "process" else supervisor_of(ctx)
        os.kill(pid, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
        time.sleep(1000)
    read(args, ctx)


ENDS = {
    "exit": "NodeExitError: worker:1 .*test_node_faults.py, line .* in exit_of_library was called before the train",
    "kill process": "NodeExitError: worker:1 .*SIGKILL",
    "kill supervisor": "NodeLostError: worker:1",
}


@pytest.mark.parametrize("how", ENDS)
def test_a_node_that_ends_is_named_and_begun_again_with_all_rows(jobs, how):
    summary = fit(jobs, fail_at_first, how, nodes=2, maxRestarts=1)
    assert rows_of(summary) == list(range(ROWS))
    first, _ = summary.attempts
    assert re.search(ENDS[how], first["ended"], re.DOTALL), first["ended"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("stop process", errors.NodeExitError),
        pytest.param("stop supervisor", errors.NodeLostError, marks=pytest.mark.chaos),  # after lease and grace
    ],
)
def test_a_node_that_stands_still_is_named_after_its_limit(spark, how, kind):
    with setting(spark, "leaseTimeout", "6"), pytest.raises(kind) as caught:
        fit(spark, fail_at_first, how, nodes=2)
    assert (caught.value.role, caught.value.index) == ("worker", 1)


def leave(args, ctx):
    """Read all rows, and end as a program does."""
    read(args, ctx)
    sys.exit()


def test_sys_exit_of_the_train_function_itself_is_its_end(spark):
    assert rows_of(fit(spark, leave)) == list(range(ROWS))


def linger(args, ctx):
    """Read all rows, and return or fail in a process that does not end."""
    read(args, ctx)
    atexit.register(time.sleep, 1000)
    if args.how == "fail":
        raise ValueError("the user's own mistake")


@pytest.mark.chaos  # as below
@pytest.mark.usefixtures("impatient")
def test_a_process_that_has_failed_and_does_not_end_is_killed(spark):
    with pytest.raises(errors.TrainFnError, match="own mistake"):
        fit(spark, linger, "fail", nodes=2)


@pytest.mark.usefixtures("impatient")
def test_a_process_that_has_returned_and_does_not_end_is_killed(spark):
    said = "worker:0 had not ended 8 s after its train function had"
    with pytest.warns(errors.NodeEndedWarning, match=said):
        assert rows_of(fit(spark, linger)) == list(range(ROWS))


def starve(args, ctx):
    """Let the supervisor open no more files in the first attempt, when it is to send a model."""
    read(args, ctx)
    if ctx.restart_count == 0:
        resource.prlimit(supervisor_of(ctx), resource.RLIMIT_NOFILE, (3, 3))
    path = Path(ctx._directory) / "saved_model"
    path.mkdir()
    (path / "saved_model.pb").write_text("a model")
    ctx._channel.send(Exported(str(path)))


def test_any_error_of_a_supervisor_names_the_node_and_its_cause_and_the_fit_is_restarted(spark, caplog):
    assert rows_of(fit(spark, starve, maxRestarts=1)) == list(range(ROWS))
    assert "worker:0" in caplog.text
    assert "Too many open files" in caplog.text
    assert "ulimit -n" in caplog.text


def mismatched_barriers(args, ctx):
    """Node 0 waits in a barrier when the other has returned."""
    ctx.barrier("all")
    if ctx.task_index == 0:
        ctx.barrier("only one")


def test_a_barrier_that_not_all_reach_is_an_error_at_once(spark):
    with pytest.raises(errors.CollectiveCallError, match="worker:1': 'has ended'"):
        fit(spark, mismatched_barriers, nodes=2)


# Clusters, whose program says when they end


def done(cluster):
    """Which nodes have told that they were done."""
    return {node["label"] for node in cluster.summary["nodes"] if node["metrics"]}


def test_grace_secs_do_not_cut_the_work_of_a_map_function(spark):
    cluster = TFCluster.run(spark.sparkContext, work, {"worker": 2}, 2)
    cluster.shutdown(grace_secs=0.5)
    assert done(cluster) == {"worker:0", "worker:1"}


def return_or_work(args, ctx):
    """The worker works for ever; the chief returns, and tells."""
    if ctx.job_name == "worker":
        time.sleep(600)
    Path(args["told"]).touch()


def test_the_time_limit_names_who_works(spark, tmp_path):
    told = tmp_path / "told"
    cluster = TFCluster.run(spark.sparkContext, return_or_work, {"told": str(told)}, 2, master_node="chief")
    assert wait_until(told.exists, 60)
    with pytest.raises(errors.ShutdownTimeoutError, match=r"\['worker:0'\] have not finished within timeout=2 s"):
        cluster.shutdown(grace_secs=300, timeout=2)


def test_grace_secs_let_an_evaluator_finish(spark):
    with setting(spark, "evaluatorGrace", "1"):
        cluster = TFCluster.run(spark.sparkContext, evaluate_once_more, {"evaluator": 4}, 2, eval_node=True)
        time.sleep(3)  # a program that is late: the grace begins with shutdown
        cluster.shutdown(grace_secs=30)
    assert done(cluster) == {"evaluator:0"}
