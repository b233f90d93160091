"""What goes wrong reaches the user as one typed error, soon, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import train_functions
from conftest import CLEAN_SECONDS, CLUSTER, LOCAL, ON_CONNECT, lives, on, our_processes, seconds, wait_until
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from tfos_ml import TFEstimator, errors
from tfos_ml.common.timeouts import TASKS_END_SECONDS


def features(spark, rows=100):
    return spark.range(0, rows, 1, 2).withColumnRenamed("id", "features")


def estimator(train_fn, directory, **params):
    params = {"clusterSize": 3, "verbose": 0, **params}
    return TFEstimator(trainFn=train_fn, tfArgs={"directory": str(directory), "fail_on": "worker:1"}, **params)


@pytest.mark.corner("A failing node is one typed error")
@on(CLUSTER)
def test_exception_on_one_node_is_soon_one_typed_error_and_the_next_fit_works(any_spark, tmp_path):
    with pytest.raises(errors.TrainFnError) as caught:
        estimator(train_functions.fail_on_one, tmp_path).fit(features(any_spark))

    # Tasks have TASKS_END_SECONDS to end by themselves, of which a loaded machine may need all.
    assert time.time() - float((tmp_path / "failed_at").read_text()) < seconds(2 * TASKS_END_SECONDS)
    error = caught.value
    assert (error.role, error.index, error.exit_code) == ("worker", 1, 1)
    assert error.host
    assert "ZeroDivisionError: the user's own mistake" in error.message
    assert 'raise ZeroDivisionError("the user\'s own mistake")' in error.traceback
    assert "tfos_ml/worker/main.py" not in error.traceback
    assert "worker:1 on " in str(error)

    estimator(train_functions.consume, tmp_path).fit(features(any_spark))
    counts = [json.loads(p.read_text()) for p in tmp_path.glob("*.json")]
    assert sum(counts) == 100


def break_collective(args, ctx):
    """Worker 1 fails while the others are in a collective operation with it."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    ctx.barrier("strategies are up")
    if ctx.task_index == 1:
        raise KeyError("first")

    @tf.function
    def step():
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

    for _ in range(1000):
        strategy.run(step)


def test_the_first_failure_wins_over_the_broken_collectives_of_its_peers(spark, tmp_path):
    with pytest.raises(errors.TrainFnError, match="KeyError: 'first'") as caught:
        estimator(break_collective, tmp_path).fit(features(spark))
    assert caught.value.index == 1


@pytest.mark.chaos
def test_a_python_daemon_of_sparks_that_ends_while_it_is_idle_is_not_noticed(spark, tmp_path):
    estimator(train_functions.consume, tmp_path, clusterSize=4).fit(features(spark))  # so many workers idle
    living = [p for p in psutil.Process().children(recursive=True) if lives(p.pid)]
    processes = [process for process in living if "daemon" in " ".join(process.cmdline()[1:3])]
    daemons = [process for process in processes if process.parent() not in processes]
    assert daemons
    for daemon in daemons:
        daemon.terminate()
    assert wait_until(lambda: gone([daemon.pid for daemon in daemons]), 10)
    estimator(train_functions.consume, tmp_path, clusterSize=1).fit(features(spark))
    forget_dead_workers(spark)


def forget_dead_workers(spark):
    """Have Spark meet the idle workers that ended with their daemon: each fails a job, and is dropped."""
    for _ in range(20):
        with contextlib.suppress(Py4JJavaError):
            return spark.sparkContext.range(1, numSlices=1).map(str).collect()
    raise AssertionError("Spark still has workers that have ended")


def running(directory: Path, nodes: int) -> dict[str, list[int]]:
    """Pids of the nodes, once all are in their train function."""
    assert wait_until(lambda: len(list(directory.glob("*.json"))) == nodes, 150)  # Spark may have to start first
    told = [json.loads(p.read_text()) for p in directory.glob("*.json")]
    return {kind: [t[kind] for t in told] for kind in told[0]}


def fit_in_thread(fit) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def run():
        try:
            fit()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def gone(pids: list[int]) -> bool:
    def alive(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return not any(map(alive, pids))


@pytest.mark.corner("A canceled job leaves nothing")
def test_canceled_job_leaves_nothing_and_other_jobs_go_on(any_spark, tmp_path):
    slots = 4
    thread, raised = fit_in_thread(
        lambda: estimator(train_functions.hang_with_grandchild, tmp_path, clusterSize=slots - 1).fit(
            features(any_spark)
        )
    )
    pids = running(tmp_path, slots - 1)
    if ON_CONNECT:  # whose clients cannot tell one job from another
        other, failed = fit_in_thread(lambda: None)
        any_spark.interruptAll()
    else:
        other, failed = fit_in_thread(lambda: slow_count(any_spark))
        cancel_fit(any_spark.sparkContext)
    thread.join(CLEAN_SECONDS)
    assert isinstance(raised[0], errors.FitCancelledError)
    assert wait_until(lambda: gone(pids["child"] + pids["grandchild"]), CLEAN_SECONDS)
    other.join(60)
    assert not failed


def cancel_fit(context) -> None:
    tracker = context.statusTracker()
    (ours,) = [j for j in tracker.getActiveJobsIds() if tracker.getJobInfo(j).stageIds and is_fit(context, j)]
    context._jsc.sc().cancelJob(ours)


def is_fit(context, job: int) -> bool:
    return "tfos_ml-" in context._jsc.sc().statusStore().job(job).jobTags().mkString()


def slow_count(spark) -> None:
    @F.udf("long")
    def slowly(value):
        time.sleep(0.5)
        return value

    assert spark.range(0, 12, 1, 1).select(slowly("id").alias("x")).agg(F.sum("x")).first()[0] == 66


@on(CLUSTER)
def test_killed_spark_python_worker_leaves_nothing(any_spark, tmp_path):
    thread, raised = fit_in_thread(
        lambda: estimator(train_functions.hang_with_grandchild, tmp_path).fit(features(any_spark))
    )
    pids = running(tmp_path, 3)
    os.kill(pids["supervisor"][0], signal.SIGKILL)
    assert wait_until(lambda: gone(pids["child"] + pids["grandchild"]), CLEAN_SECONDS)
    thread.join(CLEAN_SECONDS)
    assert isinstance(raised[0], errors.NodeLostError)
    assert raised[0].role == "worker"


DRIVER = """
import os, sys, threading
from pyspark.sql import SparkSession
import train_functions
from tfos_ml import TFEstimator
spark = (SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.executorEnv.TFOS_ML_PRELOAD", "0")
         .config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"]).getOrCreate())
df = spark.range(100).withColumnRenamed("id", "features")
def fit(directory):
    args = {"directory": directory}
    TFEstimator(trainFn=train_functions.hang_with_grandchild, tfArgs=args, clusterSize=3).fit(df)
try:
    fit(sys.argv[2])
except KeyboardInterrupt:
    print("interrupted", spark.sparkContext.statusTracker().getActiveJobsIds(), flush=True)
    print("alive", spark.range(10).count(), threading.active_count(), flush=True)
for line in sys.stdin:
    fit(line.strip())
"""


@pytest.fixture
def start_driver():
    """Starts a driver process with a fit that hangs; then fits again for each directory on its stdin."""
    started = []

    def start(master: str, directory: Path) -> subprocess.Popen[str]:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, master, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        started.append(driver)
        return driver

    yield start
    for driver in started:
        kill_with_children(driver.pid)


def interrupt(driver: subprocess.Popen[str], directory: Path) -> None:
    """Send what Ctrl-C sends, and see that the fit is gone, and nothing else."""
    pids = running(directory, 3)
    driver.send_signal(signal.SIGINT)
    assert wait_until(lambda: gone(pids["child"] + pids["grandchild"]), CLEAN_SECONDS)
    assert wait_until(lambda: not our_processes(), CLEAN_SECONDS)
    assert driver.stdout.readline().strip() == "interrupted []"
    assert driver.stdout.readline().startswith("alive 10")


def test_ctrl_c_in_a_driver_process_that_fits_again_and_is_killed(start_driver, tmp_path):
    driver = start_driver(LOCAL, tmp_path)
    interrupt(driver, tmp_path)
    again = tmp_path / "again"
    again.mkdir()
    print(again, file=driver.stdin, flush=True)
    pids = running(again, 3)
    driver.kill()
    assert wait_until(lambda: gone(pids["child"] + pids["grandchild"]), 2 * CLEAN_SECONDS)


def kill_with_children(pid: int) -> None:
    try:
        children = psutil.Process(pid).children(recursive=True)
        os.killpg(pid, signal.SIGKILL)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return
    psutil.wait_procs(children, timeout=10)


def test_two_fits_at_once_do_not_cross(spark, tmp_path):
    raised = []
    directories = [tmp_path / name for name in ("good", "bad", "small")]
    for directory in directories:
        directory.mkdir()
    good, bad, small = directories
    failing = estimator(train_functions.fail_on_one, bad, clusterSize=1)
    failing.setTfArgs({**failing.getTfArgs(), "fail_on": "worker:0"})
    jobs = [  # of as many nodes as there are slots
        fit_in_thread(lambda: estimator(train_functions.consume, good, clusterSize=2).fit(features(spark, 1000))),
        fit_in_thread(lambda: estimator(train_functions.consume, small, clusterSize=1).fit(features(spark, 10))),
        fit_in_thread(lambda: failing.fit(features(spark))),
    ]
    for thread, errors_of_one in jobs:
        thread.join(120)
        raised.append(errors_of_one)
    assert raised[:2] == [[], []]
    assert isinstance(raised[2][0], errors.TrainFnError)
    assert [sum(json.loads(p.read_text()) for p in d.glob("*.json")) for d in (good, small)] == [1000, 10]
