"""Finds, starts and calls the scoring process of the executor (:mod:`tfos_ml.worker.scoring_server`).

Clients find the process by its socket. The directory of the socket is named after the executor and after everything
that the process inherits from its starter. The first Python worker that needs the process starts it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.agent.child_process import base_environment
from tfos_ml.agent.executor import executor_cores, read_at_start, socket_path, sweep
from tfos_ml.agent.fork_client import ForkServerRef, start_process
from tfos_ml.common import unix_sockets
from tfos_ml.common.pids import ProcessHandle, start_ticks
from tfos_ml.common.timeouts import SCORER_ANSWER_SECONDS, SCORER_START_SECONDS
from tfos_ml.inference import archive, udf
from tfos_ml.inference.shared_batches import BatchSent, Message, Ready, ScoringFailed, SharedBatches
from tfos_ml.inference.tensorflow_import import PRELOADS
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.worker.fork_server import MARKER, NO_MARKER

MODULE = "tfos_ml.worker.scoring_server"
NAME = "tfos_ml scoring"
_KIND = "scoring"
_INTRA_OP = "TF_NUM_INTRAOP_THREADS"
STDERR = 2


def operation_threads(owner: int) -> int | None:
    """The number of threads for one TensorFlow operation: the cores of the executor, not those of the host.

    With a thread for each core of the host, its executors would slow each other down. None if the user has set the
    number of threads, or if the cores of the executor are unknown.
    """
    return None if _INTRA_OP in os.environ else executor_cores(owner)


class ServerNotStartedError(Exception):
    """There is no scoring process, and none can be started."""


class ScoringProcessClient:
    """The executor's scoring process, started on demand by the fork server that `fork_server` names."""

    def __init__(self, fork_server: ForkServerRef):
        self._forking = fork_server
        self.threads = operation_threads(fork_server.owner)
        threads = {name: os.environ[name] for name in ["OMP_NUM_THREADS"] if name in os.environ}
        if self.threads is not None:
            threads[_INTRA_OP] = str(self.threads)
        self._environment = {**base_environment(), **threads, MARKER: NO_MARKER, PRELOADS: "1"}
        self._path = socket_path(_KIND, fork_server.owner, read_at_start(self._environment))

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
        deadline = time.monotonic() + SCORER_START_SECONDS
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
                server = unix_sockets.peer(connected)
                connection.greet()
                return connection
            except (ConnectionError, TimeoutError) as error:
                connection.close()
                if isinstance(error, TimeoutError):
                    self._end(server)
                if is_new or time.monotonic() > deadline:
                    raise ServerNotStartedError(error) from None

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

    def _end(self, server: int) -> None:
        """Kill a server that does not answer, with the models that it holds; the next connection starts a new one."""
        with contextlib.suppress(OSError), unix_sockets.locked(self._path.parent):
            self._path.unlink(missing_ok=True)
        process = ProcessHandle.open(server)
        if process is not None:
            with process:
                if _is_scoring_process(server):
                    process.send_signal(signal.SIGKILL)


class ScoringConnection:
    """A connection to the server; ``ConnectionError`` or ``TimeoutError`` if the server ends or is silent."""

    def __init__(self, connected: socket.socket, server: ScoringProcessClient):
        connected.settimeout(SCORER_ANSWER_SECONDS)
        self._batches = SharedBatches(connected)
        self._server = server
        self._process: ProcessHandle | None = None

    def __enter__(self) -> ScoringConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
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


def _is_scoring_process(pid: int) -> bool:
    """Whether a process is a scoring process, forked or started afresh, rather than one that begins to start it."""
    with contextlib.suppress(OSError):
        forked = Path(f"/proc/{pid}/comm").read_text().strip() == NAME[:15]
        return forked or MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _error_of(failed: ScoringFailed) -> errors.TfosMlError:
    """The error that scoring in this process would have raised; a ``ModelError`` for errors of other libraries."""
    error_class = getattr(errors, failed.error, None)
    if isinstance(error_class, type) and issubclass(error_class, errors.TfosMlError):
        return error_class(failed.message)
    return errors.ModelError(f"The model failed: {failed.error}: {failed.message}\n{failed.traceback}")
