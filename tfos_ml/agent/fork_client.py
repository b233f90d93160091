"""Starts processes that use TensorFlow: forks of a server that has already imported it, or fresh interpreters.

An executor has one fork server (:mod:`tfos_ml.worker.fork_server`), or the driver where that runs the nodes: its forks
inherit what all processes of the executor do, such as limits, control groups and namespaces. Clients find the server by
its socket, whose directory is named after the executor (:mod:`tfos_ml.agent.executor`). The first client starts
the server. If a fork server is not possible, or refuses to fork, a fresh process is started.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import IO, TypeAlias, Union

from tfos_ml.agent.executor import read_at_start, read_at_start_only, socket_path, sweep
from tfos_ml.common import unix_sockets
from tfos_ml.common.interpreter import module_command
from tfos_ml.common.pids import ProcessHandle, start_ticks
from tfos_ml.common.timeouts import FORK_ANSWER_SECONDS, FORK_EXIT_SECONDS, LOCK_SECONDS
from tfos_ml.inference.tensorflow_import import PRELOADS, USES_KERAS, has_gpu_device
from tfos_ml.protocol.codec import decode, encode
from tfos_ml.protocol.frames import receive_frame, send_frame
from tfos_ml.worker.fork_server import MARKER, NO_MARKER, Exited, Forked, ForkRequest, Refused

logger = logging.getLogger(__name__)
SERVER_MODULE = "tfos_ml.worker.fork_server"
_KIND = "forkserver"


@dataclass(frozen=True)
class ForkServerRef:
    """Which fork server is used, and how long it waits for the next request."""

    owner: int  # pid of the executor, with which the server ends
    idle_seconds: float  # 0: there is no server

    def is_possible(self) -> bool:
        """Whether a server is used; not with GPUs, because forks cannot use a GPU that their parent has opened."""
        return self.idle_seconds > 0 and not has_gpu_device()


def start_process(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    standard_input: int | IO[bytes],
    output: int | IO[bytes],
    fork_server: ForkServerRef | None,
    name: str = "",
    outlives_requester: bool = False,
) -> Process:
    """Start a process in a new session that calls a module's ``main`` with `arguments` after the first.

    The first is the pid of this process if it is the parent, else "0". `environment` is its whole environment, with its
    complete search path in PYTHONPATH; `output` also receives standard error. `name` is that of a forked process, as
    ``ps`` shows it. Without `fork_server` the process is fresh.
    """
    descriptors = [d if isinstance(d, int) else d.fileno() for d in (standard_input, output)]
    if fork_server is not None and fork_server.is_possible():
        request = ForkRequest(module, ["0", *arguments], dict(environment), os.getcwd(), name, outlives_requester)
        for _ in range(2):  # a second server, if the first has just ended
            try:
                return _fork(request, descriptors, fork_server)
            except ConnectionError as error:
                logger.info("%s: %s", name or module, error)
            except (OSError, ValueError, LookupError) as error:
                logger.info("%s: %s", name or module, error)
                break
        logger.info("%s is started afresh", name or module)
    return subprocess.Popen(
        module_command(module, str(os.getpid()), *arguments),
        env=dict(environment),
        stdin=standard_input,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def start_server(environment: Mapping[str, str], fork_server: ForkServerRef) -> None:
    """Start the fork server for an environment, unless it runs; do not wait until it has imported TensorFlow."""
    if fork_server.is_possible():
        with contextlib.suppress(OSError):  # the first node that needs the server reports it
            _connect(environment, fork_server)[0].close()


class ForkedProcess:
    """A process that a fork server has forked, with the methods of ``subprocess.Popen``."""

    def __init__(self, connection: socket.socket, pid: int, started: int):
        self.pid = pid
        self.started = started  # the fork server may have waited for it
        self._connection = connection
        self._handle = ProcessHandle.open(pid, started)  # None: it has ended
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self._returncode

    def wait(self, timeout: float) -> int:
        """Its exit code; raises :class:`subprocess.TimeoutExpired`."""
        if self._returncode is None:
            if self._handle is not None and not self._handle.wait(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            with self._connection:
                self._returncode = self._read_code()
            if self._handle is not None:
                self._handle.close()
        return self._returncode

    def _read_code(self) -> int:
        """The exit code that the process or the server has reported. If neither has reported one, both were killed."""
        self._connection.settimeout(FORK_EXIT_SECONDS)
        try:
            return decode(Exited, _read(self._connection)).code
        except (OSError, ValueError):
            return -SIGKILL

    def kill(self) -> None:
        if self._returncode is None and self._handle is not None:
            self._handle.send_signal(SIGKILL)


Process: TypeAlias = Union["subprocess.Popen[bytes]", ForkedProcess]


def _fork(request: ForkRequest, descriptors: Sequence[int], fork_server: ForkServerRef) -> ForkedProcess:
    """Ask the fork server for a process; start the server first if there is none.

    Raises ``ConnectionError`` if the server has ended, so that a new one can be started, and ``OSError``,
    ``ValueError`` or ``LookupError`` if it does not fork.
    """
    connection, path = _connect(request.environment, fork_server)
    try:
        connection.settimeout(FORK_ANSWER_SECONDS)
        send_frame(connection, encode(request), descriptors)
        try:
            answer: Forked | Refused = decode(Forked | Refused, _read(connection))  # type: ignore[arg-type]
        except TimeoutError:
            _kill_server(path, unix_sockets.peer(connection))
            raise TimeoutError(
                f"the fork server has not answered for {FORK_ANSWER_SECONDS:g} s, and was killed"
            ) from None
        if isinstance(answer, Refused):
            raise OSError(answer.reason)
        return ForkedProcess(connection, answer.pid, answer.started)
    except BaseException:
        connection.close()
        raise


def _kill_server(path: Path, server: int) -> None:
    """Kill a server, so that it cannot fork later. Processes that it has forked continue without it."""
    with contextlib.suppress(OSError):  # it has ended
        if SERVER_MODULE.encode() in Path(f"/proc/{server}/cmdline").read_bytes().split(b"\0"):
            os.kill(server, SIGKILL)
    with unix_sockets.locked(path.parent):  # a filesystem that hangs may keep it from ending
        connection = unix_sockets.connect(path)
        if connection is not None:
            with connection:
                if unix_sockets.peer(connection) == server:
                    path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another server already listens there
            path.parent.rmdir()


def _read(connection: socket.socket) -> bytes:
    """The next message of the server."""
    received = receive_frame(connection)
    if received is None:
        raise ConnectionError("the fork server has ended")
    return received[0]


def _connect(environment: Mapping[str, str], fork_server: ForkServerRef) -> tuple[socket.socket, Path]:
    """A connection to the fork server and the path of its socket; starts the server if there is none."""
    imports_keras = bool(environment.get(USES_KERAS)) or environment.get(PRELOADS) != "0"
    path = socket_path(_KIND, fork_server.owner, [read_at_start(environment), imports_keras])
    with unix_sockets.locked(path.parent):
        connection = unix_sockets.connect(path)
        if connection is None:
            sweep(_KIND)
            _start_server(path, environment, fork_server, imports_keras)
            connection = unix_sockets.connect(path)
    if connection is None:
        raise ConnectionError("the fork server has ended")
    return connection, path


def _start_server(path: Path, environment: Mapping[str, str], fork_server: ForkServerRef, imports_keras: bool) -> None:
    """Start a server. It accepts requests at once, and answers them when its imports are done."""
    variables = read_at_start_only(environment)
    kept = {name: value for name, value in os.environ.items() if environment.get(name) == value}
    with unix_sockets.listen(path) as listener:
        started = start_ticks(fork_server.owner)
        known = [path, listener.fileno(), fork_server.owner, started, fork_server.idle_seconds]
        starter = subprocess.Popen(
            module_command(SERVER_MODULE, *map(str, known), "keras" if imports_keras else ""),
            env={**kept, **variables, "PYTHONPATH": environment["PYTHONPATH"], MARKER: NO_MARKER},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        try:
            starter.wait(LOCK_SECONDS)
        except subprocess.TimeoutExpired:
            starter.kill()
            raise OSError(f"no fork server has started within {LOCK_SECONDS:g} s") from None
