"""``python -m tfos_ml.worker.fork_server``: imports TensorFlow and Keras once, and forks processes that need both.

Importing them takes seconds of processor time and half a gigabyte; a fork takes 0.05 s and shares the memory. The
server creates no TensorFlow state (a runtime has threads, which do not survive a fork), and verifies that before each
fork. A forked process has the descriptors, environment, search path and working directory of its request, like a fresh
process. The server ends with its *owner* (an executor or the driver), when it has been idle for a while, or when memory
is short.

Requests and answers are frames over a Unix socket that only processes of the same user may use. The client is
:mod:`tfos_ml.agent.fork_client`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tfos_ml.common import unix_sockets
from tfos_ml.common.cgroup import is_memory_short
from tfos_ml.common.pids import ProcessHandle, start_ticks
from tfos_ml.common.timeouts import FORK_REQUEST_SECONDS, QUIET_SECONDS, TICK_SECONDS
from tfos_ml.inference.tensorflow_import import import_tensorflow, import_tensorflow_later, without_collections
from tfos_ml.protocol.codec import Struct, decode, encode
from tfos_ml.protocol.frames import receive_frame, send_frame
from tfos_ml.worker.imported_state import ImportedState

MARKER = "TFOS_ML_NODE"
"""Environment variable that identifies the processes of one attempt of one node."""
NO_MARKER = "0" * 32  # as long as a marker: a fork writes its own in this place, where others find it in /proc
MODULES = (
    *("cloudpickle", "pandas", "pyarrow.flight"),
    *("tfos_ml.worker.main", "tfos_ml.worker.node_context", "tfos_ml.worker.outcome", "tfos_ml.worker.train_args"),
    *("tfos_ml.agent.standalone_supervisor", "tfos_ml.agent.reaper"),
)
PROGRAM_MODULES = ("pyspark.sql", "pyspark.ml", "tfos_ml.stages.keras_estimator", "tfos_ml.tfcluster.tfcluster")
"""Modules that programs with train functions in their own modules import; imported when the server is idle."""
KERAS_MODULES = ("keras", "tfos_ml.keras.training", "tfos_ml.keras.model.inspection", "tfos_ml.worker.export")
_PARTS = ("data", "distribute", "nest", "raw_ops", "saved_model", "train")  # of TensorFlow, loaded when first used
_PR_SET_NAME = 15


class ForkRequest(Struct, frozen=True):
    """The agent's request for a forked process."""

    module: str  # whose ``main`` is called
    arguments: list[str]
    environment: dict[str, str]  # its PYTHONPATH is the whole search path
    directory: str  # it works in
    name: str  # for ``ps``
    outlives_requester: bool = False


class Forked(Struct, frozen=True):
    """The requested process has started."""

    pid: int
    started: int  # as :func:`tfos_ml.common.pids.start_ticks` has it


class Refused(Struct, frozen=True):
    """The server cannot fork a process that is like a fresh one."""

    reason: str


class Exited(Struct, frozen=True):
    """The process has ended. Both the process and the server send this."""

    code: int  # negative for a signal


class ForkServer:
    """The server; it ends with its `owner`, or after `idle_seconds`. When idle, it imports modules `when_idle`."""

    def __init__(
        self, listener: socket.socket, owner: ProcessHandle, idle_seconds: float, when_idle: Sequence[str] = ()
    ):
        self._listener = listener
        self._owner = owner
        self._idle_seconds = idle_seconds
        self._when_idle = when_idle
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, socket.socket] = {}  # by pid, the connection of the requester
        self._awaited: set[int] = set()  # pids of forks whose requester waits for their end
        self._imported = ImportedState()

    def serve(self) -> None:
        """Answer requests until the owner has ended, or the server has been idle for `idle_seconds`."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._owner, selectors.EVENT_READ, lambda: None)
        idle_since = time.monotonic()
        has_time, tick = not self._when_idle, min(TICK_SECONDS, self._idle_seconds)
        while not self._owner.wait(0):
            events = self._selector.select(tick if has_time else QUIET_SECONDS)
            for key, _ in events:
                key.data()
                idle_since = time.monotonic()
            if not events and not has_time and not self._awaited:
                has_time = True
                self._import_more()
            if self._children:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= self._idle_seconds or is_memory_short():
                return

    def _import_more(self) -> None:
        """Import modules that many programs need, while no request is waiting."""
        with contextlib.suppress(ImportError):  # the program that needs the module will raise it
            _import_all(self._when_idle)
        self._imported.imported_more()
        gc.freeze()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(FORK_REQUEST_SECONDS)
        descriptors: list[int] = []
        try:
            unix_sockets.check_peer(connection)
            request, descriptors = _receive(connection)
            reason = self._imported.refusal_reason(request.environment["PYTHONPATH"].split(os.pathsep))
            if reason is None:
                self._fork(request, connection, descriptors)
            else:
                _send(connection, Refused(reason))
                connection.close()
        except (OSError, ValueError, LookupError):
            connection.close()  # the client has ended, belongs to another user, or has sent something else
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, request: ForkRequest, connection: socket.socket, descriptors: Sequence[int]) -> None:
        pid = os.fork()
        if not pid:
            self._run_fork(request, connection, descriptors)
        self._children[pid] = connection
        handle = ProcessHandle.open(pid)
        assert handle is not None  # it has not been waited for
        self._selector.register(handle, selectors.EVENT_READ, lambda: self._reap(handle))
        if not request.outlives_requester:
            self._awaited.add(pid)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._kill(handle))

    def _reap(self, handle: ProcessHandle) -> None:
        """Report the exit code of a process that has ended."""
        self._selector.unregister(handle)
        handle.close()
        _, status = os.waitpid(handle.pid, 0)
        connection = self._children.pop(handle.pid)
        self._awaited.discard(handle.pid)
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection)
        _send(connection, Exited(os.waitstatus_to_exitcode(status)))
        connection.close()

    def _kill(self, handle: ProcessHandle) -> None:
        """Kill a process whose requester has ended."""
        if handle.pid in self._children:
            self._selector.unregister(self._children[handle.pid])
            handle.kill_group()
            handle.send_signal(signal.SIGKILL)  # it may not lead a group yet

    def _run_fork(self, request: ForkRequest, connection: socket.socket, descriptors: Sequence[int]) -> NoReturn:
        """Become the requested process; called in the fork."""
        code = 1
        try:
            os.setsid()
            known = {key.fd for key in self._selector.get_map().values()}
            for number in known | {other.fileno() for other in self._children.values()}:
                os.close(number)  # of the server and of other processes
            self._selector.close()
            # Sent by the fork, so that it precedes the exit code; and after closing the server's sockets.
            _send(connection, Forked(os.getpid(), start_ticks(os.getpid()) or 0))
            standard_input, output = descriptors
            for number, descriptor in enumerate((standard_input, output, output)):
                os.dup2(descriptor, number)
            for descriptor in descriptors:
                os.close(descriptor)
            _apply(request)
            main = importlib.import_module(request.module)
            sys.modules["__main__"] = main
            code = main.main(request.arguments) or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            _send(connection, Exited(code))  # the server may be gone
            os._exit(code)


def _apply(request: ForkRequest) -> None:
    """Set the environment, directory, search path and random state of a fresh process."""
    _write_marker(request.environment.get(MARKER, NO_MARKER))
    ctypes.CDLL(None).prctl(_PR_SET_NAME, request.name.encode()[:15], 0, 0, 0)
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None  # else that of the server
    os.chdir(request.directory)
    sys.path[:] = request.environment["PYTHONPATH"].split(os.pathsep)
    importlib.invalidate_caches()
    sys.argv = [request.module, *request.arguments]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own is seeded after a fork


def _write_marker(marker: str) -> None:
    """Make ``/proc`` show a marker in this process's environment, by writing to the memory that ``/proc`` reads."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    assert len(marker) == len(NO_MARKER)
    ctypes.memmove(getenv(MARKER.encode()), marker.encode(), len(marker))
    if f"{MARKER}={marker}\0".encode() not in Path("/proc/self/environ").read_bytes():
        raise OSError("the environment that /proc shows cannot be written")


def _receive(connection: socket.socket) -> tuple[ForkRequest, list[int]]:
    """A request, and the two descriptors that came with it."""
    content, descriptors = receive_frame(connection, max_descriptors=2) or (b"", [])
    try:
        if len(descriptors) == 2:
            return decode(ForkRequest, content), descriptors
        raise ValueError("no request")
    except ValueError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _send(connection: socket.socket, answer: Forked | Refused | Exited) -> None:
    with contextlib.suppress(OSError):
        send_frame(connection, encode(answer))


def _import(with_keras: bool) -> None:
    _import_all(MODULES)
    if not with_keras:
        import_tensorflow_later()
        return
    import_tensorflow()
    _import_all(KERAS_MODULES)
    for part in _PARTS:
        getattr(sys.modules["tensorflow"], part)


def _import_all(names: Sequence[str]) -> None:
    """Import modules by name: they belong to higher layers, and are only loaded here."""
    with without_collections():
        for name in names:
            importlib.import_module(name)


def main(arguments: Sequence[str]) -> None:
    """Serve; arguments: the socket's path and descriptor, the owner's pid and start, idle seconds, "keras" or ""."""
    path, descriptor, pid, started, idle_seconds, keras = arguments
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.read(reading, 1)  # until the server is connected to the socket by its own pid
        os._exit(0)  # so that the client need not wait for the server's end
    listener = socket.socket(fileno=int(descriptor))
    unix_sockets.serve_as_this_process(listener)
    os.close(writing)
    os.close(reading)
    listener.set_inheritable(False)
    owner = ProcessHandle.open(int(pid), int(started))
    try:
        if owner is not None:
            _write_marker(NO_MARKER)  # fails now if forks could not write theirs
            _import(keras == "keras")
            gc.collect()
            gc.freeze()  # so that collections in forks do not write to shared memory
            later = PROGRAM_MODULES if keras else ()
            ForkServer(listener, owner, float(idle_seconds), later).serve()
    finally:
        Path(path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            Path(path).parent.rmdir()


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    main(sys.argv[1:])
