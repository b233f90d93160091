"""Spark's scheduler, played by this process: tasks are real processes, forked ones as Spark's Python workers are.

All of tfos_ml that runs on the driver and on the nodes runs as it is, and so do pyspark's task contexts. Rows reach a
task through a socket, as Spark's do, so that they can be held up, and cut off as Spark cuts them off when a shuffle
block cannot be fetched. What Spark does about a failed task is done here:

- of a barrier stage: all tasks are killed and the job fails;
- of a plain one: it is tried again alone, `MAX_FAILURES` times;
- after a failed fetch in a plain one: all partitions without a result are begun anew, as first attempts, beside the
  tasks that still run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.util
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import spark_task

from tfos_ml.driver.spark_job import PROGRESS_INTERVAL
from tfos_ml.inference.tensorflow_import import PRELOADS
from tfos_ml.protocol import results

MAX_FAILURES = 4
MAX_STAGE_ATTEMPTS = 4
END_DEADLINE = 60.0
END_MARKERS = struct.pack(">ii", -1, -4)  # of the data and of the stream: org.apache.spark.api.python.SpecialLengths
FETCH_FAILED = (
    "FetchFailed(BlockManagerId(1, 127.0.0.1, 7337, None), shuffleId=0, mapIndex=0, mapId=3, reduceId={rank}, "
    "message=\norg.apache.spark.shuffle.FetchFailedException: Failed to connect to /127.0.0.1:7337\n)"
)
EXITED = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    ["tfos_ml.agent.standalone_supervisor", "tfos_ml.agent.task_input", "pyspark.serializers"]
)


def start_forks() -> None:
    """Start the process from which tasks are forked; their nodes need no TensorFlow, and are forked without it."""
    os.environ[PRELOADS] = "0"
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        del os.environ[PRELOADS]


def end_forks() -> None:
    """End the process from which tasks are forked, and delete what is its."""
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    multiprocessing.util._run_finalizers()


class SparkError(Exception):
    """What an action raises, with Spark's text."""


class FetchFailedError(Exception):
    """Raised by a source of rows where Spark cannot fetch a block."""


Source = Callable[[int], Iterator[Any]]
"""The rows of a partition, batch by batch, or raises ``FetchFailedError``."""


class Task:
    """One attempt at one partition."""

    def __init__(self, order: spark_task.TaskOrder, source: Source, write: Callable[[Any, Iterator[Any]], None]):
        self.rank = order.rank
        self.attempt = order.attempt
        self.rows: list[Any] = []
        self.end: str | None = None
        self.error = ""
        self.lost = False
        self._rows, theirs = socket.socketpair()
        self.answers, answers = _forks.Pipe(duplex=False)
        self.process = _forks.Process(target=spark_task.run, args=(order, theirs, answers), daemon=True)
        self.process.start()
        theirs.close()
        answers.close()
        self._writer = threading.Thread(target=self._write, args=(source, write), name="rows", daemon=True)
        self._writer.start()

    def _write(self, source: Source, write: Callable[[Any, Iterator[Any]], None]) -> None:
        try:
            with self._rows.makefile("wb") as sink:
                write(sink, source(self.rank))
                sink.write(END_MARKERS)
        except FetchFailedError:
            self.lost = True
            with contextlib.suppress(OSError):
                self._rows.shutdown(socket.SHUT_WR)
        except OSError:  # the task is gone, or wants no more
            pass

    def receive(self) -> None:
        """Take what the task has to say."""
        try:
            kind, content = self.answers.recv()
        except (EOFError, OSError):
            self.process.join(END_DEADLINE)
            self.end, self.error = "failed", EXITED
            return
        if kind == "row":
            self.rows.append(content)
        else:
            self.end, self.error = ("done", "") if kind == "done" else ("failed", content)

    def kill(self) -> None:
        """Destroy the worker, as Spark does with tasks that it cancels."""
        self.process.kill()
        self.process.join(END_DEADLINE)
        self.answers.close()
        with contextlib.suppress(OSError):
            self._rows.shutdown(socket.SHUT_RDWR)
        self._writer.join(END_DEADLINE)
        self._rows.close()
        assert not self._writer.is_alive()

    def let_end(self) -> None:
        """Wait for the end of a process that has said all."""
        self.process.join(END_DEADLINE)
        self.kill()


class Exchanges:
    """What the driver's barrier coordinator does: ``allGather`` over a socket for each task."""

    def __init__(self, size: int):
        self._size = size
        self._changed = threading.Condition()
        self._rounds: list[dict[int, bytes]] = []
        self._closed = False
        self._directory = tempfile.TemporaryDirectory(prefix="gather-")
        self._listeners = [self._listen(rank) for rank in range(size)]

    def path(self, rank: int) -> str:
        """Where a task reaches it."""
        return os.path.join(self._directory.name, str(rank))

    def _listen(self, rank: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.path(rank))
        listener.listen()
        threading.Thread(target=self._serve, args=(rank, listener), name=f"exchanges {rank}", daemon=True).start()
        return listener

    def _serve(self, rank: int, listener: socket.socket) -> None:
        for number in count():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            # Outermost: a stream to a process that was killed fails when it is closed, too.
            with contextlib.suppress(OSError, struct.error), connection, connection.makefile("rwb") as stream:
                _, length = struct.unpack(">ii", stream.read(8))
                answers = self._gather(number, rank, stream.read(length))
                if answers is None:
                    return
                stream.write(struct.pack(">i", len(answers)))
                for answer in answers:
                    stream.write(struct.pack(">i", len(answer)) + answer)
                stream.flush()

    def _gather(self, number: int, rank: int, message: bytes) -> list[bytes] | None:
        with self._changed:
            while len(self._rounds) <= number:
                self._rounds.append({})
            mine = self._rounds[number]
            mine[rank] = message
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or len(mine) == self._size)
            return None if self._closed else [mine[r] for r in range(self._size)]

    def close(self) -> None:
        """Stop listening."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._directory.cleanup()


@dataclass
class Stage:
    """A job of one stage, for ``run``."""

    spark: ProcessSpark
    function: Callable[[int, Iterable[Any]], Iterable[Any]]
    source: Source
    size: int
    barrier: bool
    reads: Callable[[Any], Iterable[Any]]
    write: Callable[[Any, Iterator[Any]], None]
    canceled: bool = False
    tags: set[str] = field(default_factory=set)

    def run(self) -> list[Any]:
        """All rows of all tasks, by partition; raises what Spark would."""
        self.tags = set(self.spark.sparkContext.tags())
        self._exchanges = Exchanges(self.size) if self.barrier else None
        self._tasks: list[Task] = []
        self._done: dict[int, Task] = {}
        self._stage_attempts = 1
        self.spark.stages.append(self)
        try:
            for rank in range(self.size):
                self._start(rank, 0)
            while len(self._done) < self.size:
                self._step()
            return [row for rank in range(self.size) for row in self._done[rank].rows]
        finally:
            self.spark.stages.remove(self)
            for task in self._tasks:
                (task.let_end if task.end == "done" else task.kill)()
            if self._exchanges is not None:
                self._exchanges.close()

    def number_running(self) -> int:
        """How many tasks run."""
        return sum(task.end is None for task in self._tasks)

    def number_done(self) -> int:
        """How many tasks have succeeded."""
        return len(self._done)

    def _start(self, rank: int, attempt: int) -> None:
        order = spark_task.TaskOrder(
            partial(self.function, rank),
            self.reads,
            rank,
            self.size,
            attempt,
            next(self.spark.task_ids),
            self._exchanges.path(rank) if self._exchanges is not None else None,
            self.spark.constants,
        )
        self._tasks.append(Task(order, self.source, self.write))

    def _step(self) -> None:
        if self.canceled:
            raise SparkError("[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job tags. SQLSTATE: XXKDA")
        running = {task.answers: task for task in self._tasks if task.end is None}
        for answers in multiprocessing.connection.wait(list(running), 0.05):
            task = running[answers]  # type: ignore[index]
            task.receive()
            if task.end is not None and task.lost:
                self._fetch_failed(task)
            elif task.end == "done":
                self._done.setdefault(task.rank, task)
            elif task.end is not None:
                self._failed(task)

    def _failed(self, task: Task) -> None:
        if self.barrier:
            raise SparkError(
                "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent "
                f"failure reason: Stage failed because barrier task ResultTask(7, {task.rank}) finished "
                f"unsuccessfully.\n{task.error}"
            )
        if task.attempt + 1 == MAX_FAILURES:
            raise SparkError(
                f"Job aborted due to stage failure: Task {task.rank} in stage 7.0 failed {MAX_FAILURES} times, most "
                f"recent failure: Lost task {task.rank}.{task.attempt} in stage 7.0 (TID 9) (127.0.0.1 executor 1): "
                f"{task.error}"
            )
        self._start(task.rank, task.attempt + 1)

    def _fetch_failed(self, task: Task) -> None:
        """Spark reports why it could not read the input, whatever the task said."""
        reason = FETCH_FAILED.format(rank=task.rank)
        if self.barrier:
            raise SparkError(
                "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent "
                f"failure reason: Stage failed because barrier task ResultTask(7, {task.rank}) finished "
                f"unsuccessfully.\n{reason}"
            )
        self._stage_attempts += 1
        if self._stage_attempts > MAX_STAGE_ATTEMPTS:
            raise SparkError(
                "Job aborted due to stage failure: ResultStage 7 has failed the maximum allowable number of times: "
                f"{MAX_STAGE_ATTEMPTS}. Most recent failure reason:\n{reason}"
            )
        for rank in range(self.size):
            if rank not in self._done:
                self._start(rank, 0)


class Rows:
    """A DataFrame, as far as tfos_ml's nodes see one: its partitions."""

    def __init__(self, spark: ProcessSpark, schema: pa.Schema, source: Source, size: int):
        self.sparkSession = spark
        self._schema, self._source, self._size = schema, source, size

    def mapInArrow(self, function: Any, schema: str, barrier: bool = False, profile: Any = None) -> Any:
        stage = Stage(
            self.sparkSession,
            partial(_without_rank, function),
            self._source,
            self._size,
            barrier,
            spark_task.arrow_batches,
            self._write,
        )
        result = MagicMock()
        result.collect = lambda: [row for batch in stage.run() for row in results.read_rows(batch)]
        result.toLocalIterator = result.collect  # of a client of Spark Connect
        return result

    def _write(self, sink: Any, batches: Iterator[pa.RecordBatch]) -> None:
        writer = pa.ipc.new_stream(sink, self._schema)
        try:
            for batch in batches:
                writer.write_batch(batch)
                sink.flush()
        finally:
            writer.close()  # Spark, too, ends the stream of a failed input as if it were whole


def _without_rank(function: Any, rank: int, rows: Iterable[Any]) -> Iterable[Any]:
    return function(rows)


class Elements:
    """An RDD, as far as ``TFCluster`` uses it."""

    def __init__(self, spark: ProcessSpark, source: Source, size: int):
        self._spark, self._source, self._size = spark, source, size

    def mapPartitionsWithIndex(self, function: Any) -> Elements:
        return Elements(self._spark, self._source, self._size)._with(function)

    def _with(self, function: Any) -> Elements:
        self._function = function
        return self

    def foreach(self, function: Any) -> None:
        self._stage(partial(_foreach, function)).run()

    def collect(self) -> list[Any]:
        return self._stage(self._function).run()

    def _stage(self, function: Any) -> Stage:
        return Stage(self._spark, function, self._source, self._size, False, spark_task.elements, _write_elements)


def _foreach(function: Any, rank: int, rows: Iterable[Any]) -> Iterable[Any]:
    for row in rows:
        function(row)
    return ()


def _write_elements(sink: Any, rows: Iterator[Any]) -> None:
    for part in rows:  # the elements of one batch
        spark_task.ELEMENTS.dump_stream(part, sink)
        sink.flush()


class Context:
    """A SparkContext: conf, job tags, and what tfos_ml asks the JVM."""

    master = "spark://127.0.0.1:7077"
    startTime = 0  # long ago
    applicationId = "app-of-processes"

    def __init__(self, spark: ProcessSpark, conf: dict[str, str]):
        self._spark = spark
        self._conf = conf
        self._tags = threading.local()
        self._jsc = MagicMock()
        self._jsc.hadoopConfiguration().get.return_value = "file:///"
        self._jsc.sc().maxNumConcurrentTasks.return_value = 8
        tracker = self._jsc.sc().statusTracker()
        tracker.getJobIdsForTag = lambda tag: [id(s) for s in list(spark.stages) if tag in s.tags]
        tracker.getJobInfo = lambda job: _option(self._stage(job), stageIds=lambda s: [id(s)])
        tracker.getStageInfo = lambda stage: _option(
            self._stage(stage),
            stageId=id,
            numTasks=lambda s: s.size,
            numActiveTasks=Stage.number_running,
            numCompletedTasks=Stage.number_done,
        )

    def _stage(self, number: int) -> Stage | None:
        return next((stage for stage in list(self._spark.stages) if id(stage) == number), None)

    def sparkUser(self) -> str:
        return "driver"

    def tags(self) -> set[str]:
        return getattr(self._tags, "tags", set())

    def addJobTag(self, tag: str) -> None:
        self._tags.tags = {*self.tags(), tag}

    def cancelJobsWithTag(self, tag: str) -> None:
        for stage in list(self._spark.stages):
            stage.canceled = stage.canceled or tag in stage.tags

    def parallelize(self, values: Sequence[Any], size: int) -> Elements:
        ends = [len(values) * rank // size for rank in range(size + 1)]
        return Elements(self._spark, lambda rank: iter([list(values[ends[rank] : ends[rank + 1]])]), size)


def _option(known: Any, **answers: Callable[[Any], Any]) -> Any:
    """A Scala Option of something that gives such answers, empty if it is None."""
    option = MagicMock()
    option.isDefined.return_value = known is not None
    for name, answer in answers.items():
        setattr(option.get(), name, partial(answer, known))
    return option


class Conf(dict[str, str]):
    """Settings of a session."""

    set = dict.__setitem__
    unset = dict.__delitem__


class ProcessSpark:
    """A session.

    Parameters
    ----------
    conf : dict of str to str
        Spark settings.
    constants : dict of str to object
        As of :class:`spark_task.TaskOrder`.
    """

    def __init__(self, conf: dict[str, str] | None = None, constants: dict[str, Any] | None = None):
        settings = Conf({"spark.driver.host": "127.0.0.1", **(conf or {})})
        self.conf = settings
        self.constants = constants or {}
        self.stages: list[Stage] = []
        self.task_ids = count()
        self.sparkContext = Context(self, settings)

    def createDataFrame(self, *arguments: Any) -> Any:
        raise NotImplementedError


class ConnectSpark(ProcessSpark):
    """A session of Spark Connect: the driver is not reached by the nodes, and tells less."""

    def __init__(self, conf: dict[str, str] | None = None, constants: dict[str, Any] | None = None):
        super().__init__({PROGRESS_INTERVAL: "0", **(conf or {})}, constants)

    def addTag(self, tag: str) -> None:
        self.sparkContext.addJobTag(tag)

    def registerProgressHandler(self, handler: Any) -> None:
        """Never called."""

    def removeProgressHandler(self, handler: Any) -> None:
        pass

    def interruptTag(self, tag: str) -> None:
        self.sparkContext.cancelJobsWithTag(tag)


ConnectSpark.__module__ = "pyspark.sql.connect.session"  # by which tfos_ml knows one


def wait_until(condition: Callable[[], Any], seconds: float) -> bool:
    """Whether a condition came true within a deadline; looks more often than that of the other tests."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
