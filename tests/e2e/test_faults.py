"""What goes wrong reaches the user as one typed error, soon, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import train_functions
from conftest import CLEAN_SECONDS, CLUSTER, ON_CONNECT, lives, our_processes, seconds, wait_until
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from tfos_ml import TFEstimator, errors
from tfos_ml.common.timeouts import TASKS_END_SECONDS


def features(spark, rows=100):
    return spark.range(0, rows, 1, 2).withColumnRenamed("id", "features")


def estimator(train_fn, directory, **params):
    params = {"clusterSize": 3, "verbose": 0, **params}
    return TFEstimator(trainFn=train_fn, tfArgs={"directory": str(directory), "fail_on": "worker:1"}, **params)


@pytest.fixture
def executors(sessions):
    return sessions.get(CLUSTER)


@pytest.mark.corner("A failing node is one typed error")
def test_exception_on_one_of_several_executors_is_soon_one_typed_error_and_the_next_fit_works(executors, tmp_path):
    spark = executors
    with pytest.raises(errors.TrainFnError) as caught:
        estimator(train_functions.fail_on_one, tmp_path).fit(features(spark))

    # Tasks have TASKS_END_SECONDS to end by themselves, of which a loaded machine may need all.
    assert time.time() - float((tmp_path / "failed_at").read_text()) < seconds(2 * TASKS_END_SECONDS)
    error = caught.value
    assert (error.role, error.index, error.exit_code) == ("worker", 1, 1)
    assert error.host
    assert "ZeroDivisionError: the user's own mistake" in error.message
    assert 'raise ZeroDivisionError("the user\'s own mistake")' in error.traceback
    assert "tfos_ml/worker/main.py" not in error.traceback
    assert "worker:1 on " in str(error)

    estimator(train_functions.consume, tmp_path).fit(features(spark))
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


def begun(function) -> Future[object]:
    """What a function, which runs in a thread from now on, will return or raise."""
    return ThreadPoolExecutor(1).submit(function)


def gone(pids: list[int]) -> bool:
    return not any(map(lives, pids))


@pytest.mark.corner("A canceled job leaves nothing")
def test_canceled_job_leaves_nothing_and_other_jobs_go_on(spark, tmp_path):
    hanging = estimator(train_functions.hang_with_grandchild, tmp_path)
    fit = begun(lambda: hanging.fit(features(spark)))
    pids = running(tmp_path, 3)
    if ON_CONNECT:  # whose clients cannot tell one job from another
        other = begun(lambda: 66)
        spark.interruptAll()
    else:
        other = begun(lambda: slow_count(spark))
        cancel_fit(spark.sparkContext)
    assert isinstance(fit.exception(CLEAN_SECONDS), errors.FitCancelledError)
    assert wait_until(lambda: gone(pids["child"] + pids["grandchild"]), CLEAN_SECONDS)
    assert other.result(60) == 66


def cancel_fit(context) -> None:
    tracker = context.statusTracker()
    (ours,) = [j for j in tracker.getActiveJobsIds() if tracker.getJobInfo(j).stageIds and is_fit(context, j)]
    context._jsc.sc().cancelJob(ours)


def is_fit(context, job: int) -> bool:
    return "tfos_ml-" in context._jsc.sc().statusStore().job(job).jobTags().mkString()


def slow_count(spark) -> int:
    @F.udf("long")
    def slowly(value):
        time.sleep(0.5)
        return value

    return spark.range(0, 12, 1, 1).select(slowly("id").alias("x")).agg(F.sum("x")).first()[0]


def test_killed_python_worker_of_several_executors_leaves_nothing(executors, tmp_path):
    hanging = estimator(train_functions.hang_with_grandchild, tmp_path)
    fit = begun(lambda: hanging.fit(features(executors)))
    pids = running(tmp_path, 3)
    os.kill(pids["supervisor"][0], signal.SIGKILL)
    assert wait_until(lambda: gone(pids["child"] + pids["grandchild"]), CLEAN_SECONDS)
    error = fit.exception(CLEAN_SECONDS)
    assert isinstance(error, errors.NodeLostError)
    assert error.role == "worker"


DRIVER = """
import os, sys, threading
from pyspark.sql import SparkSession
import train_functions
from tfos_ml import TFEstimator
spark = (SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.executorEnv.TFOS_ML_PRELOAD", "0")
         .config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"]).getOrCreate())
df = spark.range(100).withColumnRenamed("id", "features")
def fit(directory):
    args = {"directory": directory}
    TFEstimator(trainFn=train_functions.hang_with_grandchild, tfArgs=args, clusterSize=3).fit(df)
try:
    fit(sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", spark.sparkContext.statusTracker().getActiveJobsIds(), flush=True)
    print("alive", spark.range(10).count(), threading.active_count(), flush=True)
for line in sys.stdin:
    fit(line.strip())
"""


@pytest.fixture
def driver(tmp_path):
    """A driver process with a fit that hangs; then it fits again for each directory on its stdin."""
    command, pipe = [sys.executable, "-c", DRIVER, str(tmp_path)], subprocess.PIPE
    with open(tmp_path / "stderr", "w") as said:
        driver = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, text=True, start_new_session=True)
    yield driver
    kill_with_children(driver.pid)
    print((tmp_path / "stderr").read_text())  # which pytest shows if the test has failed


def test_ctrl_c_in_a_driver_process_that_fits_again_and_is_killed(driver, tmp_path):
    pids = running(tmp_path, 3)
    driver.send_signal(signal.SIGINT)
    assert wait_until(lambda: gone(pids["child"] + pids["grandchild"]), CLEAN_SECONDS)
    assert wait_until(lambda: not our_processes(), CLEAN_SECONDS)
    assert driver.stdout.readline().strip() == "interrupted []"
    assert driver.stdout.readline().startswith("alive 10")
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
    good, bad, small = directories = [tmp_path / name for name in ("good", "bad", "small")]
    for directory in directories:
        directory.mkdir()
    failing = estimator(train_functions.fail_on_one, bad, clusterSize=1)
    failing.setTfArgs({**failing.getTfArgs(), "fail_on": "worker:0"})
    jobs = [  # of as many nodes as there are slots
        begun(lambda: estimator(train_functions.consume, good, clusterSize=2).fit(features(spark, 1000))),
        begun(lambda: estimator(train_functions.consume, small, clusterSize=1).fit(features(spark, 10))),
        begun(lambda: failing.fit(features(spark))),
    ]
    raised = [job.exception(120) for job in jobs]
    assert raised[:2] == [None, None]
    assert isinstance(raised[2], errors.TrainFnError)
    assert [sum(json.loads(p.read_text()) for p in d.glob("*.json")) for d in (good, small)] == [1000, 10]
