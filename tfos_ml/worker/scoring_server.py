"""``tfos_ml.worker.scoring_server``: runs the models for all Python workers of an executor in one process.

So each model is in memory once, and Python workers do not import TensorFlow. Each task opens a connection for each
model. The first batch on it says how to call the model; each further batch has rows
(:mod:`tfos_ml.inference.shared_batches`). Each connection is served by its own thread. The server ends when its
*owner*, the executor, ends. It also ends when it has had no connection for a while, or has none and memory is short.

The client is :mod:`tfos_ml.agent.scoring_client`.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tfos_ml.common import unix_sockets
from tfos_ml.common.cgroup import is_memory_short
from tfos_ml.common.pids import ProcessHandle
from tfos_ml.common.timeouts import SCORER_IDLE_SECONDS, TICK_SECONDS
from tfos_ml.inference import saved_model, udf
from tfos_ml.inference.shared_batches import BatchSent, Ready, SharedBatches
from tfos_ml.inference.tensorflow_import import import_tensorflow

OUTPUT = "output"  # the column with the results


class ScoringServer:
    """The server of Python workers; it ends with its `owner`, or after `idle_seconds` without a connection."""

    def __init__(self, listener: socket.socket, path: Path, owner: ProcessHandle, idle_seconds: float):
        self._listener = listener
        self._path = path
        self._inode = self._path.stat().st_ino
        self._owner = owner
        self._idle_seconds = idle_seconds
        self._loads = threading.Lock()  # the cache of loaded models is not thread-safe
        self._clients: set[SharedBatches] = set()
        self._changes = threading.Lock()

    def serve(self) -> None:
        """Serve until the owner ends, or until there has been no connection for `idle_seconds`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._owner, selectors.EVENT_READ)
            idle_since = time.monotonic()
            while not self._owner.wait(0):
                for key, _ in selector.select(min(TICK_SECONDS, self._idle_seconds)):
                    if key.fileobj is self._listener:
                        self._accept()
                if self._has_clients():
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since >= self._idle_seconds or is_memory_short():
                    if self._leave():
                        return
                    idle_since = time.monotonic()
        self._delete_socket()

    def _has_clients(self) -> bool:
        """Whether a client is there. One that was canceled may leave a call of the model that never ends."""
        poller = select.poll()
        with self._changes:
            for batches in self._clients:
                poller.register(batches.connection, 0)  # and POLLHUP, which is always told
            return len(poller.poll(0)) < len(self._clients)

    def _leave(self) -> bool:
        """Close the socket, unless a client is connecting or starting a server; returns whether it is closed."""
        with contextlib.suppress(OSError), unix_sockets.locked(self._path.parent, seconds=0):
            with selectors.DefaultSelector() as selector:
                selector.register(self._listener, selectors.EVENT_READ)
                if selector.select(0):
                    return False
            self._delete_socket()
            return True
        return not self._path.parent.exists()

    def _delete_socket(self) -> None:
        self._listener.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:  # else it belongs to another server now
                self._path.unlink()
                self._path.parent.rmdir()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            unix_sockets.check_peer(connection)
            batches = SharedBatches(connection)
            batches.send(Ready(os.getpid()))
        except OSError:
            connection.close()
            return
        with self._changes:
            self._clients.add(batches)
        threading.Thread(target=self._serve, args=[batches], name="scoring", daemon=True).start()

    def _serve(self, batches: SharedBatches) -> None:
        try:
            self._answer(batches)
        except (ConnectionError, ValueError, pa.ArrowInvalid):
            pass  # the client has ended, or has sent something else
        finally:
            with self._changes:
                self._clients.remove(batches)
            batches.close()

    def _answer(self, batches: SharedBatches) -> None:
        """Load the model, and score batches until the connection ends."""
        described = _received_batch(batches)  # raises if a client has only checked that the server answers
        try:
            scoring = udf.decode_scoring(described.column(0)[0].as_py())
            with self._loads:
                function = udf.load_function(scoring)
        except Exception as error:
            batches.fail(error, traceback.format_exc())
            return
        batches.send(Ready(os.getpid()))
        while True:
            batch = _received_batch(batches)
            try:
                result = _score(scoring, function, batch)
            except Exception as error:
                batches.fail(error, traceback.format_exc())
                continue
            batches.send_batch(result)


def _received_batch(batches: SharedBatches) -> pa.RecordBatch:
    """The next batch, in the sender's memory."""
    message = batches.receive()
    if not isinstance(message, BatchSent):
        raise ValueError(f"expected a batch, got {message}")
    return batches.read(message)


def _score(scoring: udf.ScoringSpec, function: saved_model.Scorer, batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([udf.score_block(scoring, function, batch.columns)], [OUTPUT])


def main(arguments: Sequence[str]) -> None:
    """Serve at standard input: the parent's pid ("0" in a fork), socket's path, owner's pid and start, idle seconds."""
    parent, path, pid, started, idle_seconds = arguments
    if parent != "0" and os.fork():
        os._exit(0)  # detached, because its parent may end first or never wait for it
    listener = socket.socket(fileno=os.dup(0))
    unix_sockets.serve_as_this_process(listener)  # so that a client can end it, should it hang before it greets
    owner = ProcessHandle.open(int(pid), int(started))
    if owner is not None:
        import_tensorflow()
        ScoringServer(listener, Path(path), owner, max(float(idle_seconds), SCORER_IDLE_SECONDS)).serve()


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
