"""Translates errors of Spark jobs into errors of tfos_ml, which say what to change."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tfos_ml import errors
from tfos_ml.agent.task_input import INPUT_LOST
from tfos_ml.common.packed_environment import found_in
from tfos_ml.common.redact import redact
from tfos_ml.common.sessions import is_connect
from tfos_ml.common.timeouts import DAEMON_SECONDS
from tfos_ml.driver.nodes import UNKNOWN_HOST
from tfos_ml.protocol.failure import Failure, find_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tfos_ml.protocol.cluster_template import NodeRole

logger = logging.getLogger(__name__)
T = TypeVar("T")
SHOWN_CHARACTERS = 500
MEMORY = "If the host ran out of memory, raise spark.executor.memoryOverhead"
_TASK = re.compile(r"ResultTask\(\d+, (\d+)\)")
_PLAIN_TASK = re.compile(r"Task (\d+) in stage \S+ failed \d+ times")
_CANCELLED = re.compile(
    r"SPARK_JOB_CANCELLED|Job \d+ cancelled|OPERATION_CANCELED|SparkContext was shut ?down|stopped SparkContext"
)
_TOO_LARGE = re.compile(r"bigger than spark\.driver\.maxResultSize")
_TOO_FEW_SLOTS = re.compile(r"SPARK-24819")
_MISSING_MODULE = re.compile(
    r"ModuleNotFoundError: No module named '((?:tfos_ml|pyarrow|cloudpickle|msgspec|psutil)[\w.]*)'"
)
_OTHER_PYTHON = re.compile(r"Python in worker has different version")
_FETCH = re.compile(r"FetchFailed|MetadataFetchFailed")
_REDUCER = re.compile(r"reduceId=(\d+)")
# The first two are of Spark 4, the others of Spark 3.5.
_FILE = re.compile(
    r"\[(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER)[.\w]*\]|Encountered error while reading file"
    r"|FileNotFoundException: File .* does not exist|is not a Parquet file|Could not read footer for file"
)
_SILENT = re.compile(r"Executor heartbeat timed out")
# Raised after the end of the daemon that forks Spark's Python workers; idle workers end with it.
_DAEMON_ENDED = re.compile(
    r"java\.io\.IOException: (?:Stream closed|Broken pipe)(?:\s+at [^\n]*){1,20}PythonWorkerFactory"
)
_NO_WORKER = (
    "Spark could not start a Python worker, because the Python daemon of that executor had ended: by SIGTERM, or by "
    f"the kernel because memory was short. {MEMORY}; else run it again"
)
_LOST = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Executor heartbeat timed out|worker lost")


def typed_error(error: BaseException, spark: SparkSession) -> BaseException:
    """The error for what Spark reports of a job; errors that are not about tfos_ml stay as they are."""
    text = str(error)
    if _CANCELLED.search(text):
        return errors.FitCancelledError(
            f"The Spark job was canceled, or its session stopped. Spark says: {_line(_CANCELLED, text)}"
        )
    if _is_stopped(spark):  # then the error may be anything
        return errors.FitCancelledError("The Spark session was stopped while the job ran. Start one, and fit again.")
    failure = find_failure(text)
    if failure is not None:
        return failure.to_error()
    if _TOO_LARGE.search(text):
        return errors.ResultSizeError(
            "The nodes' results, including the model, are too large for the driver to collect. Set exportDir, so that "
            f"the model goes there instead, or raise spark.driver.maxResultSize. Spark says: {_line(_TOO_LARGE, text)}"
        )
    missing = _MISSING_MODULE.search(text)
    if missing is not None:
        return errors.ClusterConfigError(
            f"The Python of the executors has no module {missing[1]!r}. Install what the driver has on every host, in "
            "the Python that spark.pyspark.python or PYSPARK_PYTHON names, or send it with spark.archives or "
            "spark.submit.pyFiles."
        )
    if _OTHER_PYTHON.search(text):
        return errors.ClusterConfigError(
            "The executors' Python is not the driver's; Spark needs the same minor version. Have PYSPARK_PYTHON, or on "
            "Spark Connect spark.sql.execution.pyspark.python, name another, or pack with the driver's: python -m "
            f"tfos_ml pack. Spark says: {_line(_OTHER_PYTHON, text)}"
        )
    if _TOO_FEW_SLOTS.search(text):
        return errors.NotEnoughSlotsError(
            "Spark waited for enough task slots for all nodes at once, and gave up. Lower clusterSize or nodeCpus, or "
            f"add executors. Spark says: {_line(_TOO_FEW_SLOTS, text)}"
        )
    packed = found_in(text)
    if packed is not None:
        return packed
    if _DAEMON_ENDED.search(text):
        return errors.PythonDaemonError(_NO_WORKER)
    if _FILE.search(text) and not _FETCH.search(text):
        return errors.InputLostError(
            "Spark could not read a file of the DataFrame: it was deleted, replaced or damaged, perhaps after the "
            "DataFrame was made, or its store failed. Make the DataFrame again (spark.read), and write its files again "
            f"if they are damaged. Spark says: {redact(_line(_FILE, text))}"
        )
    return error


def adapt_rows_error(error: BaseException, spark: SparkSession) -> BaseException:
    """The error for a job that collects rows to adapt preprocessing layers."""
    typed = typed_error(error, spark)
    if isinstance(typed, errors.ResultSizeError):
        return errors.ResultSizeError(
            "The rows that adaptLayers are adapted on are too large for the driver to collect. Limit them with "
            f"adaptRows, or raise spark.driver.maxResultSize. Spark says: {_line(_TOO_LARGE, str(error))}"
        )
    return typed


def run_job(
    job: Callable[[], T],
    spark: SparkSession,
    typed: Callable[[BaseException, SparkSession], BaseException] = typed_error,
) -> T:
    """The result of a Spark job that is not the nodes'; raises the error that `typed` makes of Spark's.

    The job runs again, for ``DAEMON_SECONDS``, while Spark hands out Python workers that have died with their daemon.
    """
    deadline = time.monotonic() + DAEMON_SECONDS
    while True:
        try:
            return job()
        except Exception as error:  # Spark's
            known = typed(error, spark)
            if not isinstance(known, errors.PythonDaemonError) or time.monotonic() > deadline:
                raise known from None
            logger.warning("Running a job again, because Spark's Python daemon on an executor had ended")


def node_error(
    error: BaseException, spark: SparkSession, nodes: Sequence[NodeRole], hosts: Sequence[str], reported: str | None
) -> BaseException:
    """The error for what Spark reports of a job whose tasks are `nodes`, in order, on `hosts`.

    `reported` is the report of the first failed node to the driver.
    """
    text = str(error)
    in_text = find_failure(text)
    failure = find_failure(reported or "") or in_text
    has_cause = in_text is None and not _FETCH.search(text)  # the job has another cause than unreadable rows
    if failure is not None and not (failure.error is errors.InputLostError and has_cause):
        return failure.to_error()
    typed = typed_error(error, spark)
    if isinstance(typed, errors.PythonDaemonError):
        return _of_node(nodes, hosts, errors.PythonDaemonError, _NO_WORKER, _TASK, text)
    if typed is not error:
        return typed
    if _FETCH.search(text):
        lost = f"{INPUT_LOST}. Spark says: {_line(_FETCH, text)}"
        return _of_node(nodes, hosts, errors.InputLostError, lost, _REDUCER, text)
    task = _TASK if _TASK.search(text) else _PLAIN_TASK
    if not _LOST.search(text):  # a stage of the input failed, which has other reasons
        return error
    if not _is_of_node(task.search(text), hosts):
        return _input_lost(text)
    if _SILENT.search(text):
        cause = "Spark has lost contact with the executor of the node: its host is cut off, or too busy to answer"
    else:
        cause = "the Spark Python worker or executor of the node died. " + MEMORY
    lost = f"{cause}. Spark says: {_line(_LOST, text)}"
    return _of_node(nodes, hosts, errors.NodeLostError, lost, task, text)


def feed_error(error: BaseException, spark: SparkSession) -> BaseException:
    """The error for what Spark reports of a job that feeds nodes."""
    typed = typed_error(error, spark)
    return _input_lost(str(error)) if typed is error and _LOST.search(str(error)) else typed


def _input_lost(text: str) -> errors.InputLostError:
    """The error for rows whose tasks died, and not those of nodes."""
    return errors.InputLostError(
        "Spark could not compute all rows, because Python workers or executors that compute them died, as often as "
        f"spark.task.maxFailures allows. {MEMORY}. Spark says: {_line(_LOST, text)}"
    )


def _is_of_node(task: re.Match[str] | None, hosts: Sequence[str]) -> bool:
    """Whether a task is a node: one of a barrier stage, or of a plain one once any node has been heard of."""
    return task is not None and (task.re is _TASK or any(host != UNKNOWN_HOST for host in hosts))


def _of_node(
    nodes: Sequence[NodeRole],
    hosts: Sequence[str],
    error_class: type[errors.NodeError],
    message: str,
    rank: re.Pattern[str],
    text: str,
) -> BaseException:
    match = rank.search(text)
    if match is None or int(match[1]) >= len(nodes):
        return Failure(error_class, message).to_error()
    node, host = nodes[int(match[1])], hosts[int(match[1])]
    return Failure(error_class, message, node.job_name, node.task_index, host).to_error()


def _is_stopped(spark: SparkSession) -> bool:
    """Whether the session has been stopped; unknown, so False, on Spark Connect."""
    return not is_connect(spark) and spark.sparkContext._jsc is None


def _line(pattern: re.Pattern[str], text: str) -> str:
    """The first line of a text that matches a pattern; empty if there is none."""
    return next((line for line in text.splitlines() if pattern.search(line)), "").strip(" :")[:SHOWN_CHARACTERS]
