"""One task of :mod:`spark_of_processes`, in a process of its own, as Spark's Python worker would run it."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark.taskcontext
from pyspark import BarrierTaskContext, TaskContext
from pyspark.serializers import BatchedSerializer, CPickleSerializer

from tfos_ml.agent.standalone_supervisor import StandaloneNode, lead

ELEMENTS = BatchedSerializer(CPickleSerializer(), 5)


@dataclass(frozen=True)
class TaskOrder:
    """What a task is told.

    Attributes
    ----------
    function : callable
        Of the rows, as Spark would call it.
    reads : callable
        Makes the rows of the stream that they come on.
    rank, attempt, task_id : int
        Partition, number of the attempt at it, and number of the task.
    gather : str or None
        Unix socket of the exchanges between the tasks of a barrier stage.
    constants : dict of str to object
        Values of module constants, by their full names: shorter deadlines.
    """

    function: Callable[[Iterable[Any]], Iterable[Any]]
    reads: Callable[[Any], Iterable[Any]]
    rank: int
    size: int
    attempt: int
    task_id: int
    gather: str | None
    constants: dict[str, Any] = field(default_factory=dict)


def arrow_batches(stream: Any) -> Iterator[pa.RecordBatch]:
    """Rows as ``mapInArrow`` gets them; a stream that breaks off between two batches looks whole to Arrow, too."""
    yield from pa.ipc.open_stream(stream)


def elements(stream: Any) -> Iterator[Any]:
    """Rows as ``mapPartitions`` gets them; a stream that breaks off looks whole here, too."""
    yield from ELEMENTS.load_stream(stream)


def run(order: TaskOrder, rows: socket.socket, answers: Connection) -> None:
    """The process's main function; ends it without Python's clean-up, as ``pyspark.daemon`` does."""
    for name, value in order.constants.items():
        module, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(module), attribute, value)
    TaskContext._setTaskContext(task_context(order))
    pyspark.taskcontext.local_connect_and_auth = lambda _port, _secret: connected(order.gather)
    BarrierTaskContext._port, BarrierTaskContext._conn_info, BarrierTaskContext._secret = order.gather, order.gather, ""
    code = 0
    try:
        with rows, rows.makefile("rb", 65536) as stream:
            main(stream, answers, order)
    except BaseException:
        answers.send(("error", traceback.format_exc()))
        code = 1
    answers.close()
    sys.stderr.flush()
    os._exit(code)


def task_context(order: TaskOrder) -> TaskContext:
    """What ``TaskContext.get()`` returns in the task; Sparks make one each in its own way, and read the same of it."""
    context = object.__new__(TaskContext if order.gather is None else BarrierTaskContext)
    context._stageId, context._partitionId = 7, order.rank
    context._attemptNumber, context._taskAttemptId = order.attempt, order.task_id
    context._cpus, context._resources = 1, {}
    context._localProperties = {"addresses": ",".join(["127.0.0.1:0"] * order.size)}
    return context


def connected(path: str) -> tuple[Any, socket.socket]:
    """A connection for one exchange, as file and as socket; Sparks before 4.1 know TCP only."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection.makefile("rwb", 65536), connection


def main(infile: Any, answers: Connection, order: TaskOrder) -> None:
    """Named, with its first argument, as that of ``pyspark.worker``, where tfos_ml looks for the task's stream."""
    for answer in order.function(order.reads(infile)):
        answers.send(("row", answer))
    answers.send(("done", None))


def fork_supervisor(node: StandaloneNode) -> SimpleNamespace:
    """Instead of ``start_supervisor``: the same program, in a fork that need not import it again."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            os.dup2(writing, 3)
            os.closerange(4, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 4096 else 4096)
            lead(node, os.fdopen(3, "wb"))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    output = os.fdopen(reading, "rb")
    return SimpleNamespace(
        has_joined=lambda: bool(output.readline()),
        wait=lambda: (output.read() and None) or os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
        close=output.close,
    )
