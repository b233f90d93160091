"""``python -m tfos_ml.agent.reaper``: cleans up after a supervisor, however it ended.

Spark cancels with SIGKILL, so a node's supervisor cannot be relied on to clean up. The
reaper runs in a session of its own and reads what to guard from stdin, one JSON object a
line. At end-of-file, that is when the supervisor has closed the pipe or died, it kills the
node's processes, deletes its directories and ends; after a death it also tells the driver.

A supervisor that is alive says so every two seconds. One that is frozen (SIGSTOP, a debugger, a
file system that hangs) is ended after a while, since nothing else would ever end it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfos_ml.agent.fork_client import Forking, start_process
from tfos_ml.agent.process import child_environment, kill_tree
from tfos_ml.common.pids import ProcessHandle, start_ticks
from tfos_ml.worker.forkserver import MARKER, NO_MARKER

MODULE = "tfos_ml.agent.reaper"
NAME = "tfos reaper"
CLEANUP_TIMEOUT = 10.0
SUPERVISOR_TIMEOUT = 60.0
BEAT_SECONDS = 2.0
_SLICE_SECONDS = 1.0


class Reaper:
    """The supervisor's handle on its reaper, which runs from construction on.

    Parameters
    ----------
    marker : str
        Found in the environment of every process to kill.
    directories : sequence of str
        To be deleted.
    environment : mapping of str to str, optional
        Of the node, but for its marker; by default as little as possible.
    forking : Forking, optional
        The fork server to use.
    watch : float, optional
        Seconds without a sign of life after which this process is taken for frozen, and killed.
    frozen : str, optional
        The failure that is then reported to the driver, if it can be reached.
    """

    def __init__(
        self,
        marker: str,
        directories: Sequence[str],
        watch: float | None = None,
        frozen: str | None = None,
        environment: Mapping[str, str] | None = None,
        forking: Forking | None = None,
    ) -> None:
        # With the node's marker it would be killed with those that it guards against.
        variables = {**(child_environment("", 1, {}) if environment is None else environment), MARKER: NO_MARKER}
        reading, self._pipe = os.pipe()
        with open(reading, "rb") as lines, open(os.devnull, "wb") as nothing:
            self._process = start_process(MODULE, (), variables, lines, nothing, forking, NAME, outlives_requester=True)
        os.set_blocking(self._pipe, False)  # it may be frozen, too
        self._lock = threading.Lock()
        self._lost = False  # killed, or frozen for too long
        self._closed = threading.Event()
        self._marker = marker
        self._directories = list(directories)
        self._child: ProcessHandle | None = None
        me = os.getpid()
        self.guard(
            marker=marker,
            directories=self._directories,
            watch=watch,
            frozen=frozen,
            supervisor=me,
            supervisor_started=start_ticks(me),
        )
        period = BEAT_SECONDS if watch is None else min(BEAT_SECONDS, watch / 5)
        self._beats = threading.Thread(target=self._beat, args=(period,), name="reaper", daemon=True)
        self._beats.start()

    def guard(self, **what: Any) -> None:
        """Add what is known by now: ``pid`` of the node's process, ``control`` and ``rank`` to report to.

        The process must not have been waited for. A reaper that is gone is
        passed over: :meth:`finish` does its work.
        """
        if "pid" in what:
            self._child = ProcessHandle.open(what["pid"])
            what["started"] = self._child and self._child.started
        self._write(json.dumps(what).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        deadline = time.monotonic() + CLEANUP_TIMEOUT
        poller = select.poll()
        poller.register(self._pipe, select.POLLOUT)
        with self._lock:
            while line and not self._lost:
                try:
                    line = line[os.write(self._pipe, line) :]
                except BrokenPipeError:
                    self._lost = True
                except BlockingIOError:
                    self._lost = not poller.poll(1000 * max(0.0, deadline - time.monotonic()))

    def _beat(self, period: float) -> None:
        while not self._closed.wait(period) and not self._lost:
            with self._lock, contextlib.suppress(BlockingIOError, BrokenPipeError):
                if not self._lost:
                    os.write(self._pipe, b"{}\n")  # as short as it is, whole or not at all

    def finish(self, *, report: bool) -> bool:
        """Have everything cleaned up now, and wait for it; with `report` the reaper reports that to the driver, too.

        What a reaper that was killed or frozen has not done is done here.

        Returns
        -------
        bool
            Whether the reaper has done it all, the report included.
        """
        self._closed.set()
        self._beats.join()
        if not report:
            self.guard(control=None)
        with self._lock:
            os.close(self._pipe)
            self._lost, is_lost = True, self._lost
        try:
            done = self._process.wait(0 if is_lost else CLEANUP_TIMEOUT) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(CLEANUP_TIMEOUT)
            done = False
        if not done:
            kill_tree(self._child, self._marker)
        _delete(self._directories)
        if self._child is not None:
            self._child.close()
        return done


def _delete(directories: Sequence[str]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


class _Watch:
    """What is to be guarded, and for how long the supervisor has been silent."""

    def __init__(self) -> None:
        self.guarded: dict[str, Any] = {}
        self.child: ProcessHandle | None = None
        self.supervisor: ProcessHandle | None = None
        self._silent = 0.0

    @property
    def slice(self) -> float:
        """Seconds to wait for a line at a time."""
        return min(_SLICE_SECONDS, (self.guarded.get("watch") or math.inf) / 10)

    def hear(self, line: bytes) -> None:
        """Take in a line, while the processes that it names are still there."""
        self._silent = 0.0
        what = json.loads(line)
        self.guarded.update(what)
        if what.get("started"):
            self.child = ProcessHandle.open(what["pid"], what["started"])
        if what.get("supervisor"):
            self.supervisor = ProcessHandle.open(what["supervisor"], what["supervisor_started"])

    def hear_nothing(self) -> bool:
        """Note that a slice of time has passed without a line; whether the supervisor was ended for that.

        Slices are counted, not seconds: where everything stood still, this process did too, and that is one slice.
        """
        self._silent += self.slice
        watch = self.guarded.get("watch")
        if watch is None or self._silent < watch + 2 * self.slice:
            return False
        self._end_supervisor()
        return True

    def _end_supervisor(self) -> None:
        if self.guarded.get("frozen"):
            _tell(self.guarded, "ReportFailure", error=self.guarded["frozen"])
        if self.supervisor is not None:
            self.supervisor.send_signal(signal.SIGKILL)
            self.supervisor.wait(CLEANUP_TIMEOUT)

    def clean_up(self) -> None:
        """End what is left of the node, and report that to the driver."""
        kill_tree(self.child, self.guarded["marker"])
        _delete(self.guarded["directories"])
        _tell(self.guarded, "ReportGone")


def _tell(guarded: dict[str, Any], request: str, **content: Any) -> None:
    if not guarded.get("control"):
        return
    from tfos_ml.protocol import control_messages
    from tfos_ml.protocol.control_client import ControlClient

    with contextlib.suppress(Exception):  # the driver may be gone too; there is nobody left to tell
        ControlClient(**guarded["control"]).call(getattr(control_messages, request)(guarded["rank"], **content))


def _lines(descriptor: int, watch: _Watch) -> Iterator[bytes | None]:
    """Whole lines until end-of-file, and None for each slice of time without any."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    rest = b""
    while True:
        if not poller.poll(watch.slice * 1000):
            yield None
            continue
        read = os.read(descriptor, 1 << 16)
        if not read:
            return  # what is left was cut off by the death of who wrote it
        *lines, rest = (rest + read).split(b"\n")
        yield from lines


def main(arguments: Sequence[str]) -> None:
    """Collect what to guard until end-of-file, or until the supervisor is found frozen; then clean it up."""
    watch = _Watch()
    for line in _lines(sys.stdin.fileno(), watch):
        if line is not None:
            watch.hear(line)
        elif watch.hear_nothing():
            break
    if watch.guarded:
        watch.clean_up()


if __name__ == "__main__":
    main(sys.argv[1:])
