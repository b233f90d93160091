"""The TensorFlow process of a node: its start, its output, its end.

The process leads a session of its own and has a scrubbed environment. Its output goes to the executor's log; the last
lines are kept for error messages.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import psutil

from tfos_ml.agent.fork_client import Forking, start_process
from tfos_ml.common.interpreter import search_path
from tfos_ml.common.pids import ProcessHandle, has_no_environment
from tfos_ml.worker.fork_server import MARKER

TAIL_LINES = 40
LINES_A_SECOND = 100  # of a process that are passed on
LINE_LENGTH = 2_000  # characters that are
_SECRET = ("PYTHON_WORKER_FACTORY_", "_PYSPARK_", "PYSPARK_GATEWAY", "SPARK_AUTH", "_SPARK_", "SPARK_CONNECT")
_OURS_TO_SET = ("OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTHON_UDF_BATCH_SIZE", "TF_CONFIG")


def new_marker() -> str:
    """A new value of :data:`MARKER`, unique to one attempt of a node; all values have the same length."""
    return uuid.uuid4().hex


def child_environment(marker: str, threads: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Environment of a TensorFlow process.

    Parameters
    ----------
    marker : str
        Identifies the node; found in the environment of all descendants.
    threads : int
        CPU cores of the node's Spark task; sizes TensorFlow's and OpenMP's thread pools.
    extra : mapping of str to str
        The user's ``nodeEnv``, which overrides all other variables.
    """
    return {
        **base_environment(),
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(max(2, threads)),
        **extra,
        MARKER: marker,
    }


def base_environment() -> dict[str, str]:
    """The environment that all processes with TensorFlow inherit from this one, without its secrets."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_SECRET) and k not in _OURS_TO_SET}
    kept.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return {**kept, "PYTHONPATH": os.pathsep.join(search_path()), "PYTHONUNBUFFERED": "1"}


class LimitedLines:
    """Passes on a limited number of lines a second, and counts the rest.

    Parameters
    ----------
    pass_on : callable
        Gets each line, without its end.
    lines_a_second : int
        The limit.
    """

    def __init__(self, pass_on: Callable[[str], None], lines_a_second: int):
        self._pass_on = pass_on
        self._limit = lines_a_second
        self._lock = threading.Lock()
        self._second = 0.0
        self._lines = 0

    def take(self, line: str) -> None:
        """Pass a line on, or count it."""
        with self._lock:
            if time.monotonic() - self._second >= 1.0:
                self._tell_left_out()
                self._second, self._lines = time.monotonic(), 0
            self._lines += 1
            if self._lines <= self._limit:
                self._pass_on(line.removesuffix("\n"))

    def _tell_left_out(self) -> None:
        left_out = self._lines - self._limit
        if left_out > 0:
            self._pass_on(f"({left_out:,} lines left out: more than {self._limit} a second)")

    def end(self) -> None:
        """Report how many lines were left out since the last report."""
        with self._lock:
            self._tell_left_out()
            self._lines = 0


class OutputRelay:
    """Copies a process's output to this process's stderr, and keeps its last lines.

    It copies at most ``LINES_A_SECOND`` lines a second, and counts the rest.

    Parameters
    ----------
    stream : file
        The output.
    label : str
        Prefix of its lines.
    others : LimitedLines, optional
        Also gets the lines.
    """

    def __init__(self, stream: IO[str], label: str, others: LimitedLines | None = None):
        self._stream = stream
        self._label = label
        self._readers = [LimitedLines(self._write, LINES_A_SECOND), *([others] if others else [])]
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(target=self._relay, name=f"relay {label}", daemon=True)
        self._thread.start()

    def _relay(self) -> None:
        with self._stream:
            for line in _cut_lines(self._stream):
                self._tail.append(line)
                for reader in self._readers:
                    reader.take(line)
        for reader in self._readers:
            reader.end()

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the disk of the log is full: the process must not notice
            sys.stderr.write(f"[{self._label}] {line}\n")

    def tail(self, timeout: float) -> str:
        """The last lines, once the output has ended or `timeout` seconds have passed."""
        self._thread.join(timeout)
        return "".join(list(self._tail))


def _cut_lines(stream: IO[str]) -> Iterator[str]:
    """The lines of a stream, with their ends; of a long one the first ``LINE_LENGTH`` characters."""
    while line := stream.readline(LINE_LENGTH):
        left_out, part = 0, line
        while not part.endswith("\n") and (part := stream.readline(LINE_LENGTH)):
            left_out += len(part.rstrip("\n"))
        yield f"{line} ({left_out:,} characters left out)\n" if left_out else line.removesuffix("\n") + "\n"


class ChildProcess:
    """A running process that calls a module's ``main``, with a socket to talk to it.

    Its standard input is the other end of the socket pair.

    Parameters
    ----------
    module : str
        Module to run.
    environment : mapping of str to str
        Its whole environment.
    label : str
        Prefix of its lines in the log.
    others : LimitedLines, optional
        Also gets its lines.
    forking : Forking, optional
        The fork server to use.

    Attributes
    ----------
    pid : int
        Its process id, which is its session and process group too.
    started : int, optional
        When a fork server has started it (:func:`tfos_ml.common.pids.start_ticks`); None for a child of this process.
    socket : socket.socket
        Our end of the socket pair.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str],
        label: str,
        others: LimitedLines | None = None,
        forking: Forking | None = None,
    ):
        self.socket, theirs = socket.socketpair()
        reading, writing = os.pipe()
        with theirs, open(writing, "wb") as output:
            self._process = start_process(module, (), environment, theirs.fileno(), output, forking, label)
        self.pid = self._process.pid
        self.started: int | None = getattr(self._process, "started", None)
        self._relay = OutputRelay(os.fdopen(reading, errors="replace"), label, others)

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def log_tail(self) -> str:
        """The last lines it wrote."""
        return self._relay.tail(timeout=0.0 if self.returncode is None else 1.0)

    def kill(self) -> None:
        """Kill it; the reaper kills its descendants."""
        self._process.kill()

    def wait(self, timeout: float) -> bool:
        """Whether it ended within `timeout` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def describe_exit(returncode: int) -> tuple[int | None, str | None, str]:
    """Exit code, signal name and a sentence for a return code of ``subprocess``.

    Examples
    --------
    >>> describe_exit(-11)
    (None, 'SIGSEGV', 'was ended by SIGSEGV')
    """
    if returncode == -signal.SIGKILL or returncode == 128 + signal.SIGKILL:
        hint = (
            "was ended by SIGKILL. The kernel does this to a process that is out of memory (exit code 137): "
            "raise spark.executor.memoryOverhead, use a smaller batchSize, or fewer nodes on a host"
        )
        return (None if returncode < 0 else returncode), "SIGKILL", hint
    if returncode < 0:
        known = -returncode in set(signal.Signals)
        name = signal.Signals(-returncode).name if known else f"signal {-returncode}"  # realtime signals have none
        return None, name, f"was ended by {name}"
    return returncode, None, f"exited with code {returncode}"


def kill_tree(leader: ProcessHandle | None, marker: str) -> None:
    """Kill the process group of `leader`, and every process with `marker` in its environment.

    Descendants may have left the process group or been adopted by init. They have inherited the marker, so this
    searches for it until no such process is left.
    """
    if leader is not None:
        leader.kill_group()
    for _ in range(10):
        left = [pid for pid in psutil.pids() if pid != os.getpid() and _has_marker(pid, marker)]
        if not left:
            return
        with contextlib.ExitStack() as handles:
            killed = [handle for pid in left if (handle := _kill_marked(pid, marker, handles)) is not None]
            deadline = time.monotonic() + 1
            for handle in killed:
                handle.wait(max(0.0, deadline - time.monotonic()))


def _kill_marked(pid: int, marker: str, handles: contextlib.ExitStack) -> ProcessHandle | None:
    handle = ProcessHandle.open(pid)
    if handle is None:
        return None
    handles.enter_context(handle)
    if not _has_marker(pid, marker):  # checked again, now that the handle pins the process
        return None
    handle.send_signal(signal.SIGKILL)
    return handle


def _has_marker(pid: int, marker: str) -> bool:
    return f"{MARKER}={marker}".encode() in _environment(pid).split(b"\0")


def _environment(pid: int) -> bytes:
    """The environment of a process; empty if it has ended, or belongs to another user or the kernel."""
    deadline = time.monotonic() + 1
    while True:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return b""
        if environment or has_no_environment(pid) or time.monotonic() > deadline:
            return environment
        time.sleep(0.001)
