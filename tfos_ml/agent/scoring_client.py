"""Scores the rows of a transform, in the Python worker itself or in the scoring process of the executor.

The scoring process (:mod:`tfos_ml.worker.scoring_server`) is found by its socket. The socket's directory is named after
the executor and after everything that the process inherits from its starter. The first Python worker that needs the
process starts it. If it dies, a worker starts it again and sends the interrupted batch once more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.agent.child_process import base_environment
from tfos_ml.agent.executor_process import executor, executor_cores
from tfos_ml.agent.fork_client import Forking, start_process
from tfos_ml.agent.shared_sockets import read_at_start, socket_path, sweep
from tfos_ml.common import unix_sockets
from tfos_ml.common.pids import ProcessHandle, start_ticks
from tfos_ml.inference import archive, udf
from tfos_ml.inference.shared_batches import BatchSent, Message, Ready, ScoringFailed, SharedBatches
from tfos_ml.inference.tensorflow_import import PRELOADS, limit_threads
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.scoring_process import AUTO, EXECUTOR, SCORING_SETTING, WORKER
from tfos_ml.worker.fork_server import MARKER, NO_MARKER

logger = logging.getLogger(__name__)
MODULE = "tfos_ml.worker.scoring_server"
NAME = "tfos_ml scoring"
_KIND = "scoring"
_INTRA_OP = "TF_NUM_INTRAOP_THREADS"
STDERR = 2
START_SECONDS = 120.0  # for the process to start on a busy machine
ANSWER_SECONDS = 60.0  # for the process to accept a client, even if it is busy
LARGE_MODEL_BYTES = 64 << 20
MANY_CORES = 8  # with small models, most work is Python's, so one process cannot keep this many cores busy


@dataclass(frozen=True)
class ScoringProcess:
    """The driver's decision on which process scores; part of the UDF's closure."""

    kind: str  # AUTO, EXECUTOR or WORKER
    model_bytes: int
    idle_seconds: float
    owner: int | None  # the driver, in local mode; None: this executor
    application: str = ""  # see Forking

    @property
    def is_shared(self) -> bool:
        """Whether the executor's scoring process is used; called on the executor."""
        if self.kind != AUTO:
            return self.kind == EXECUTOR
        is_worthwhile = self.model_bytes >= LARGE_MODEL_BYTES or len(os.sched_getaffinity(0)) <= MANY_CORES
        return self.idle_seconds > 0 and is_worthwhile


def make_udf_function(
    scoring: udf.ScoringSpec, process: ScoringProcess
) -> Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]:
    """The function that Spark calls with an iterator of batches, one Arrow array a column."""

    def score(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        if not process.is_shared:
            threads = _threads(process.owner or executor())
            for batch in batches:
                yield _score_here(scoring, udf.columns_of(batch), threads)
            return
        with Scorer(scoring, process) as scorer:
            for batch in batches:
                yield scorer.score(udf.columns_of(batch))

    return score


def _score_here(scoring: udf.ScoringSpec, columns: list[pa.Array], threads: int | None) -> pa.Array:
    """Outputs for one Arrow batch, with the model in this process."""
    if threads is not None:
        limit_threads(threads)
    return udf.score_here(scoring, columns)


def _threads(owner: int) -> int | None:
    """The number of threads for one TensorFlow operation: the cores of the executor, not those of the host.

    With a thread for each core of the host, its executors would slow each other down. None if the user has set the
    number of threads, or if the cores of the executor are unknown.
    """
    return None if _INTRA_OP in os.environ else executor_cores(owner)


class Scorer:
    """One task's use of the executor's scoring process; a context manager.

    Parameters
    ----------
    scoring : ScoringSpec
        How the model is called.
    process : ScoringProcess
        The process to use.
    """

    def __init__(self, scoring: udf.ScoringSpec, process: ScoringProcess):
        self._scoring = scoring
        self._server = ScoringProcessClient(
            Forking(process.owner or executor(), process.idle_seconds, process.application)
        )
        self._may_score_here = process.kind == AUTO
        self._scores_here = False
        self._connection: ScoringConnection | None = None

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def score(self, columns: list[pa.Array]) -> pa.Array:
        """Outputs for one Arrow batch, as :func:`tfos_ml.inference.udf.score_here` returns them.

        Raises
        ------
        TfosMlError
            As that function; ``ModelError`` if the model fails, or ends the process twice.
        """
        if self._scores_here:
            return _score_here(self._scoring, columns, self._server.threads)
        try:
            return udf.score_batch(self._scoring, columns, self._score_block)
        except ServerNotStartedError as error:
            if not self._may_score_here:
                raise errors.ModelError(
                    f"The executor's scoring process does not start: {error}. See the executor's log, or set "
                    f"{SCORING_SETTING}={WORKER}."
                ) from None
            logger.warning("This Python worker runs the model itself: %s", error)
            self._scores_here = True
            return self.score(columns)

    def _score_block(self, columns: list[pa.Array]) -> pa.Array:
        try:
            return self._connected().score(columns)
        except (ConnectionError, TimeoutError) as error:
            logger.warning("The scoring process has ended (%s): its batch is scored once more", error)
            self._disconnect()
        try:
            return self._connected().score(columns)
        except (ConnectionError, TimeoutError) as error:
            self._disconnect()
            raise errors.ModelError(
                f"The scoring process ended twice while it had the same batch of {len(columns[0])} rows ({error}): "
                "the model ends it, or memory is short. See the executor's log; set a smaller predictBatchSize, or "
                "more memory (spark.executor.memoryOverhead)."
            ) from None

    def _connected(self) -> ScoringConnection:
        """A connection to the server, after the server has loaded the model."""
        if self._connection is None:
            model = self._scoring.model
            try:
                self._connection = self._server.load(self._scoring)
            except errors.ModelError:
                if not isinstance(model, Artifact):
                    raise
                archive.repair(model)
                self._connection = self._server.load(self._scoring)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ServerNotStartedError(Exception):
    """There is no scoring process, and none can be started."""


class ScoringProcessClient:
    """The executor's scoring process, started on demand.

    Parameters
    ----------
    forking : Forking
        The executor, and the fork server to use.
    """

    def __init__(self, forking: Forking):
        self._forking = forking
        self.threads = _threads(forking.owner)
        threads = {name: os.environ[name] for name in ["OMP_NUM_THREADS"] if name in os.environ}
        if self.threads is not None:
            threads[_INTRA_OP] = str(self.threads)
        self._environment = {**base_environment(), **threads, MARKER: NO_MARKER, PRELOADS: "1"}
        self._path = socket_path(_KIND, forking.owner, read_at_start(self._environment))

    def load(self, scoring: udf.ScoringSpec) -> ScoringConnection:
        """A connection for batches of a model, which is loaded; raises as :meth:`ScoringConnection.load`."""
        connection = self.connect()
        try:
            connection.load(scoring)
        except BaseException:
            connection.close()
            raise
        return connection

    def connect(self) -> ScoringConnection:
        """A connection to the server; raises ``ServerNotStartedError``."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                connected, is_new = self._connected_or_started()
            except FileNotFoundError as error:  # an idle server has just deleted its directory
                if time.monotonic() > deadline:
                    raise ServerNotStartedError(error) from None
                continue
            except OSError as error:
                raise ServerNotStartedError(error) from None
            connection = ScoringConnection(connected, self)
            try:
                connection.greet()
                return connection
            except (ConnectionError, TimeoutError) as error:
                connection.close()
                if is_new or time.monotonic() > deadline:
                    raise ServerNotStartedError(error) from None
                if isinstance(error, TimeoutError):
                    self._abandon()

    def answers(self) -> bool:
        """Whether the server accepts connections."""
        try:
            with unix_sockets.locked(self._path.parent):
                connected = unix_sockets.connect(self._path)
            if connected is not None:
                with ScoringConnection(connected, self) as connection:
                    connection.greet()
                return True
        except OSError:
            pass
        return False

    def _connected_or_started(self) -> tuple[socket.socket, bool]:
        with unix_sockets.locked(self._path.parent):
            connected = unix_sockets.connect(self._path)
            if connected is not None:
                return connected, False
            sweep(_KIND)
            listener = unix_sockets.listen(self._path)
        with listener:  # other clients can already connect, and wait
            started = str(start_ticks(self._forking.owner))
            arguments = [str(self._path), str(self._forking.owner), started, str(self._forking.idle_seconds)]
            start_process(
                MODULE,
                arguments,
                self._environment,
                listener.fileno(),
                STDERR,
                self._forking,
                NAME,
                outlives_requester=True,
            )
            connected = unix_sockets.connect(self._path)
        if connected is None:
            raise ConnectionError("it has ended")
        return connected, True

    def _abandon(self) -> None:
        """Make the next connection start a new server, because this one does not answer. It ends when it is idle."""
        with contextlib.suppress(OSError), unix_sockets.locked(self._path.parent):
            self._path.unlink(missing_ok=True)


class ScoringConnection:
    """A connection to the server; a context manager.

    Every method raises ``ConnectionError`` or ``TimeoutError`` if the server ends, or does not answer any more.
    """

    def __init__(self, connected: socket.socket, server: ScoringProcessClient):
        connected.settimeout(ANSWER_SECONDS)
        self._batches = SharedBatches(connected)
        self._server = server
        self._process: ProcessHandle | None = None

    def __enter__(self) -> ScoringConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._batches.close()
        if self._process is not None:
            self._process.close()

    def greet(self) -> None:
        """Wait until the server serves this connection."""
        ready = self._batches.receive()
        if isinstance(ready, Ready):
            self._process = ProcessHandle.open(ready.pid)

    def load(self, scoring: udf.ScoringSpec) -> None:
        """Make the server load the model; raises ``ModelError`` if it cannot."""
        model = scoring.model
        directory = archive.unpacked(model) if isinstance(model, Artifact) else model
        described = [pa.array([udf.encode_scoring(scoring, directory)], pa.binary())]  # too long for one message
        self._batches.send_batch(pa.RecordBatch.from_arrays(described, ["scoring"]))
        self._answer()

    def score(self, columns: list[pa.Array]) -> pa.Array:
        """The same as :func:`tfos_ml.inference.udf.score_block`; raises the error that the server reports."""
        self._batches.send_batch(pa.RecordBatch.from_arrays(columns, [str(i) for i in range(len(columns))]))
        answer = self._answer()
        if not isinstance(answer, BatchSent):
            raise ConnectionError(f"unexpected answer {answer}")
        return self._batches.copy(answer).column(0)

    def _answer(self) -> Message:
        """The next message; waits for it as long as the server accepts connections."""
        while True:
            try:
                message = self._batches.receive()
                break
            except TimeoutError:
                if not self._server.answers():
                    if self._process is not None:
                        self._process.send_signal(signal.SIGKILL)  # the server hangs, and with it all its clients
                    raise
        if isinstance(message, ScoringFailed):
            raise _error_of(message)
        return message


def _error_of(failed: ScoringFailed) -> errors.TfosMlError:
    """The error that scoring in this process would have raised; a ``ModelError`` for errors of other libraries."""
    error_class = getattr(errors, failed.error, None)
    if isinstance(error_class, type) and issubclass(error_class, errors.TfosMlError):
        return error_class(failed.message)
    return errors.ModelError(f"The model failed: {failed.error}: {failed.message}\n{failed.traceback}")
