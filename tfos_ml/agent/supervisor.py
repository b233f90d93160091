"""A node, seen from its Spark task: CLAIM -> JOIN -> RUN -> STOP.

The task supervises one TensorFlow process. It claims the node's resources (``node_resources.py``: a spool, a reaper, a
port, the process), joins the other nodes, runs (feeds rows, forwards messages, watches the process), and stops when
all nodes that train have ended. The driver gets the outcome as result rows, or as one ``NodeFailure``.
"""

from __future__ import annotations

import collections
import errno
import logging
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from msgspec import structs

from tfos_ml import errors
from tfos_ml.agent.node_identity import identity_of
from tfos_ml.agent.node_resources import HostResources
from tfos_ml.agent.node_run import NodeFailed, NodeRun, StandaloneMode
from tfos_ml.agent.outbox import Outbox
from tfos_ml.agent.output import NodeOutput
from tfos_ml.agent.snapshot_reader import SnapshotReader
from tfos_ml.agent.spark_task import (
    ApartTask,
    BrokenExchangeError,
    ConnectedTask,
    PlainTask,
    SparkTask,
    all_reach_driver,
    check_driver,
    task_info_of,
)
from tfos_ml.agent.task_input import INPUT_LOST, checked_complete
from tfos_ml.common.timeline import Timeline
from tfos_ml.common.timeouts import LEASE_SECONDS
from tfos_ml.data import spool
from tfos_ml.protocol.failure import Failure, NodeFailure
from tfos_ml.protocol.node_task import NodeTask

logger = logging.getLogger(__name__)
NODE_LOST = (
    "Spark has started the node's task a second time, because its Python worker or executor died. A single node cannot "
    "be restarted. If the host ran out of memory, raise spark.executor.memoryOverhead"
)
_ADVICE = {
    errno.EMFILE: "Raise the limit of open files on the executors' hosts (ulimit -n)",
    errno.ENFILE: "Raise the limit of open files on the executors' hosts (sysctl fs.file-max)",
    errno.ENOMEM: "The host or its container is out of memory: raise spark.executor.memoryOverhead",
    errno.EAGAIN: "Raise the limit of processes on the executors' hosts (ulimit -u)",
}


def run_node(task: NodeTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of the job: rows in, result rows out."""
    from pyspark import BarrierTaskContext, TaskContext

    context: Any = BarrierTaskContext.get() if task.barrier else TaskContext.get()
    rank = task.driver_nodes + context.partitionId()
    spark_task = _spark_task(task, context, rank)
    if isinstance(spark_task, ApartTask):
        task = replace(task, control=None)
    yield from supervise(Supervisor(task, spark_task), _input_batches(task, batches, rank))


def _spark_task(task: NodeTask, context: Any, rank: int) -> SparkTask:
    """Whether the run is connected or apart is decided here, before anything starts."""
    control, size = task.control, task.template.size
    assert control is not None
    if task.barrier and not all_reach_driver(control, rank, size):
        return ApartTask(context)
    check_driver(control)
    make = ConnectedTask if task.barrier else PlainTask
    return make(task_info_of(context, rank, control), control, size, patience=task.lease or LEASE_SECONDS)


def _input_batches(task: NodeTask, batches: Iterable[pa.RecordBatch], rank: int) -> Iterable[pa.RecordBatch]:
    """The rows of a node: Spark's, or those that it reads from a snapshot; none if it takes none."""
    if task.schema.columns and task.snapshot is None:
        return checked_complete(batches)
    collections.deque(batches, maxlen=0)  # unless all rows are read, Spark ends this Python worker after the task
    if task.snapshot is None:
        return ()
    return SnapshotReader(task.snapshot, task.schema, task.template, rank)


def supervise(node: Supervisor, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a node. Takes rows, yields result rows; none if it fails and the driver knows, else ``NodeFailure``."""
    succeeded = False
    try:
        yield from node.lead(batches)
        succeeded = True
    except NodeFailure as error:
        if not node.report_failure(error):
            raise
    finally:
        node.stop(succeeded)


class Supervisor:
    """Supervises one node, for :func:`supervise`."""

    def __init__(self, task: NodeTask, spark_task: SparkTask, standalone: StandaloneMode | None = None):
        self._task = task
        self._spark_task = spark_task
        self._standalone = standalone
        self._member = identity_of(task, spark_task.info.rank, spark_task.info.host)
        self._outbox = Outbox()
        verbose = 0 if task.shares_console else task.verbose
        self._output = NodeOutput(self._member.run_role.label, verbose, task.template.size, self._outbox)
        self._host = HostResources(self._member, spark_task, self._output.printed)
        self._timeline = Timeline()
        self._run: NodeRun | None = None

    def lead(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Go through the phases up to RUN; any error becomes a ``NodeFailure`` that names the node."""
        try:
            self._check_first()
            resources = self._host.acquire()
            self._timeline.end("process")
            self._run = run = NodeRun(
                self._member, self._spark_task, resources, self._output, self._outbox, self._timeline, self._standalone
            )
            run.start()
            run.join()
            run.run(batches)
            yield from run.results()
        except errors.TfosMlError as error:
            text = error.message if isinstance(error, errors.NodeError) else str(error)
            raise self.failure(type(error), text) from error
        except NodeFailed as error:
            raise NodeFailure(self._named(error.failure)) from error
        except spool.NoRoomError as error:
            raise self.failure(errors.SpoolFullError, str(error)) from error
        except flight.FlightError as error:
            raise self.failure(errors.NodeLostError, f"the driver cannot be reached: {error}") from error
        except (NodeFailure, BrokenExchangeError):
            raise
        except Exception as error:
            raise NodeFailure(self._named(unexpected(error))) from error

    def _check_first(self) -> None:
        """Raise if Spark has started this node before: a single node cannot be restarted."""
        if self._spark_task.is_first():
            return
        if self._spark_task.info.attempt == 0:  # Spark repeats the whole stage because its input was lost
            raise errors.InputLostError(INPUT_LOST)
        raise errors.NodeLostError(NODE_LOST)

    def failure(self, error_class: type[errors.TfosMlError], message: str) -> NodeFailure:
        return NodeFailure(self._named(Failure(error_class, message)))

    def _named(self, failure: Failure) -> Failure:
        node, tail = self._member.run_role, self._host.log_tail()
        return structs.replace(
            failure, role=node.job_name, index=node.task_index, host=self._member.host, log_tail=tail
        ).cut()

    def report_failure(self, error: NodeFailure) -> bool:
        """Report a failure to the driver and kill the process; returns whether the task may end without an error."""
        if self._host.child is not None:
            self._host.child.kill()  # first, because reporting may take long
        error_class = error.failure.error
        if not self._task.shares_console and error_class is not errors.FitCancelledError:
            log_failure(error.failure)
        if self._task.barrier and error_class is errors.InputLostError:
            return False  # Spark itself ends the job with the error
        try:
            return self._spark_task.report_failure(str(error)) and error_class is not errors.InputLostError
        except (pa.ArrowException, OSError):  # without a free file there is no connection
            logger.warning("The driver cannot be reached, so it does not learn of: %s", error)
            return False

    def stop(self, succeeded: bool) -> None:
        """Release all resources, and report that to the driver."""
        self._spark_task.close()
        link = self._run.close() if self._run is not None else None
        self._host.port.release()
        if link is not None:
            self._host.log_tail()  # waits until the last lines have been passed on
            link.close()
        reported = self._host.release(report=not succeeded)
        if link is not None:
            if not reported:
                link.report_gone(succeeded=succeeded)
            link.disconnect()


def unexpected(error: Exception) -> Failure:
    """The failure of a node whose supervisor has met an error that nothing here expects."""
    message = f"the node's supervisor failed: {type(error).__name__}: {error}"
    advice = _ADVICE.get(error.errno or 0) if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        advice = _ADVICE[errno.ENOMEM]
    trace = "".join(traceback.format_exception(error))
    return Failure(errors.NodeLostError, f"{message}. {advice}" if advice else message, traceback=trace)


def log_failure(failure: Failure) -> None:
    """Write all details of a failure to the executor's log."""
    error = failure.to_error()
    text = error.details if isinstance(error, errors.NodeError) else str(error)
    sys.stderr.write(f"{type(error).__name__}: {text}\n")
