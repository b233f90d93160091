"""What Spark says of failed jobs, as typed errors that name the node, if one is to blame."""

from types import SimpleNamespace

import pytest

from tfos_ml import errors
from tfos_ml.driver.job_errors import feed_error, node_error, run_job
from tfos_ml.driver.nodes import UNKNOWN_HOST
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.failure import Failure

HOSTS = ["10.0.0.1", "10.0.0.2"]
RUNNING = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=object()))
# As Spark 4.3 says it, shortened.
BARRIER = "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent failure "
FETCH_FAILED = BARRIER + "reason: Stage failed because barrier task ResultTask(3, {rank}) finished unsuccessfully.\n"
FETCH_FAILED += (
    "FetchFailed(BlockManagerId(1, 127.0.0.2, 37061, None), shuffleId=0, mapIndex=2, mapId=2, reduceId={rank}, message="
)
WORKER_DIED = BARRIER + (
    "reason: Stage failed because barrier task ResultTask(3, {rank}) finished unsuccessfully.\norg.apache.spark."
    "SparkException: Python worker exited unexpectedly (crashed)"
)
SILENT = BARRIER + (
    "reason: Stage failed because barrier task ResultTask(3, {rank}) finished unsuccessfully.\nExecutorLostFailure "
    "(executor 1 exited caused by one of the running tasks) Reason: Executor heartbeat timed out after 8731 ms"
)
DAEMON_ENDED = BARRIER + (
    "reason: Stage failed because barrier task ResultTask(8, {rank}) finished unsuccessfully.\njava.io.IOException: "
    "Stream closed\n\tat java.base/java.lang.ProcessBuilder$NullOutputStream.write(ProcessBuilder.java:445)\n\tat "
    "org.apache.spark.api.python.PythonWorkerFactory.stopWorker(PythonWorkerFactory.scala:523)\n\tat ..."
)
PLAIN = (
    "Job aborted due to stage failure: Task {rank} in stage 3.0 failed 1 times, most recent failure: Lost task "
    "{rank}.0 in stage 3.0 (TID 9) (10.0.0.2 executor 1): org.apache.spark.SparkException: Python worker exited "
    "unexpectedly"
)
TOO_LARGE = (
    "Job aborted due to stage failure: Total size of serialized results of 2 tasks (9.5 MiB) is bigger than "
    "spark.driver.maxResultSize (1024.0 KiB)"
)
CASES = {
    "shuffle block lost": (FETCH_FAILED, errors.InputLostError, r"worker:1 .*could not read all rows.*maxRestarts"),
    "Python worker died": (WORKER_DIED, errors.NodeLostError, r"worker:1 on 10\.0\.0\.2: .*memoryOverhead"),
    "Python worker died, in a plain job": (PLAIN, errors.NodeLostError, r"worker:1 on 10\.0\.0\.2: .*memoryOverhead"),
    "executor silent": (SILENT, errors.NodeLostError, "worker:1 .*cut off, or too busy.*timed out after 8731 ms"),
    "Python daemon ended": (DAEMON_ENDED, errors.PythonDaemonError, "worker:1 .*the Python daemon .* had ended"),
    "results too large": (TOO_LARGE, errors.ResultSizeError, r"Set exportDir.*9\.5 MiB"),
    "archive of another machine": (
        BARRIER
        + "reason: ...\nError from python worker:\n  ./environment/bin/python: packed for aarch64, and vm is x86_64\n"
        "PYTHONPATH was:\n  ...\norg.apache.spark.SparkException: EOFException occurred while reading the port number",
        errors.PackedEnvironmentError,
        r"packed for aarch64, and vm is x86_64\. Pack on a host",
    ),
    "another Python": (
        "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in "
        "driver: 3.11, PySpark cannot run with different minor versions.",
        errors.ClusterConfigError,
        "PYSPARK_PYTHON.*worker has different version: 3.12 than that in driver: 3.11",
    ),
}


def test_spark_says():
    for text, kind, message in CASES.values():
        error = node_error(RuntimeError(text.format(rank=1)), RUNNING, make_template(2).nodes, HOSTS, None)
        with pytest.raises(kind, match=f"(?s){message}"):
            raise error


def test_a_plain_task_that_died_before_any_node_was_heard_of_is_of_the_input():
    error = node_error(RuntimeError(PLAIN.format(rank=1)), RUNNING, make_template(2).nodes, [UNKNOWN_HOST] * 2, None)
    assert isinstance(error, errors.InputLostError)


def test_feed_tasks_that_died_have_lost_rows():
    assert isinstance(feed_error(RuntimeError(PLAIN.format(rank=1)), RUNNING), errors.InputLostError)
    other = RuntimeError("[DIVIDE_BY_ZERO] Division by zero")
    assert feed_error(other, RUNNING) is other


def test_rows_that_spark_could_not_read_for_a_reason_of_the_users_are_that_error():
    told = Failure(errors.InputLostError, "could not read all rows", "worker", 0, "h").encode()
    error = RuntimeError("[DIVIDE_BY_ZERO] Division by zero")
    assert node_error(error, RUNNING, make_template(2).nodes, HOSTS, told) is error


def test_a_node_that_spark_starts_again_after_rows_were_lost_is_not_the_cause():
    told = Failure(errors.InputLostError, "could not read all rows", "worker", 0, "h").encode()
    again = Failure(errors.NodeLostError, "started a second time", "worker", 1, "h").encode()
    of_job = RuntimeError(f"Task 1 failed 4 times: NodeFailure {again}")
    error = node_error(of_job, RUNNING, make_template(2).nodes, HOSTS, told)
    assert isinstance(error, errors.InputLostError)
    assert error.index == 0


def test_a_job_runs_again_after_the_end_of_its_python_daemon_and_after_nothing_else():
    said = [DAEMON_ENDED.format(rank=0), DAEMON_ENDED.format(rank=1)]

    def job():
        if said:
            raise RuntimeError(said.pop())
        return 7

    assert run_job(job, RUNNING) == 7
    said = [DAEMON_ENDED, TOO_LARGE]
    with pytest.raises(errors.ResultSizeError):
        run_job(job, RUNNING)
    assert said == [DAEMON_ENDED]
