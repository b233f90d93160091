"""``python -m tfos_ml.agent.reaper``: cleans up after a supervisor, however it ended.

Spark cancels tasks with SIGKILL, so a node's supervisor may have no chance to clean up. The reaper runs in a session
of its own and reads from stdin what to guard, one JSON object a line. At end-of-file, when the supervisor has closed
the pipe or died, the reaper kills the node's processes, deletes its directories and ends. If the supervisor died, the
reaper also tells the driver.

A live supervisor sends a sign of life every two seconds. The reaper kills a supervisor that stays silent, because
nothing else ends one that is frozen (SIGSTOP, a debugger, a file system that hangs).
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

from tfos_ml.agent.child_process import child_environment, kill_tree
from tfos_ml.agent.fork_client import Forking, start_process
from tfos_ml.common.limits import BEAT_SECONDS, REAP_SECONDS, SLICE_SECONDS
from tfos_ml.common.pids import ProcessHandle, start_ticks
from tfos_ml.worker.fork_server import MARKER, NO_MARKER

MODULE = "tfos_ml.agent.reaper"
NAME = "tfos reaper"


class Reaper:
    """The supervisor's handle on its reaper, which starts on construction.

    Parameters
    ----------
    marker : str
        Every process with it in its environment will be killed.
    environment : mapping of str to str, optional
        Environment of the node without its marker; by default a minimal one.
    forking : Forking, optional
        The fork server to use.
    watch : float, optional
        Seconds without a sign of life after which the reaper kills this process as frozen.
    frozen : str, optional
        The failure that the reaper then reports to the driver.
    """

    def __init__(
        self,
        marker: str,
        watch: float | None = None,
        frozen: str | None = None,
        environment: Mapping[str, str] | None = None,
        forking: Forking | None = None,
    ) -> None:
        # Without the node's marker, since the reaper would kill itself.
        variables = {**(child_environment("", 1, {}) if environment is None else environment), MARKER: NO_MARKER}
        reading, self._pipe = os.pipe()
        with open(reading, "rb") as lines, open(os.devnull, "wb") as nothing:
            self._process = start_process(MODULE, (), variables, lines, nothing, forking, NAME, outlives_requester=True)
        os.set_blocking(self._pipe, False)  # because the reaper may be frozen, too
        self._lock = threading.Lock()
        self._lost = False  # killed, or frozen for too long
        self._closed = threading.Event()
        self._marker = marker
        self._directories: list[str] = []
        self._child: ProcessHandle | None = None
        me = os.getpid()
        self.guard(
            marker=marker,
            directories=[],
            watch=watch,
            frozen=frozen,
            supervisor=me,
            supervisor_started=start_ticks(me),
        )
        period = BEAT_SECONDS if watch is None else min(BEAT_SECONDS, watch / 5)
        self._beats = threading.Thread(target=self._beat, args=(period,), name="reaper", daemon=True)
        self._beats.start()

    def guard(self, **facts: Any) -> None:
        """Tell the reaper more: ``directories`` to delete, ``pid`` of the node's process, ``control`` and ``rank``.

        Give ``started`` with the ``pid`` of a process that another one may have waited for, as a fork server has; call
        this before any other process has been waited for. If the reaper is gone, this does nothing: :meth:`finish`
        does its work.
        """
        self._directories = list(facts.get("directories", self._directories))
        if "pid" in facts:
            self._child = ProcessHandle.open(facts["pid"], facts.get("started"))
            facts["started"] = self._child and self._child.started
        self._write(json.dumps(facts).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        deadline = time.monotonic() + REAP_SECONDS
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
                    os.write(self._pipe, b"{}\n")  # short enough to be written completely or not at all

    def finish(self, *, report: bool) -> bool:
        """Make the reaper clean up now, and wait for it; with `report` it also tells the driver.

        If the reaper was killed or is frozen, this process cleans up.

        Returns
        -------
        bool
            Whether the reaper has done everything, including the report.
        """
        self._closed.set()
        self._beats.join()
        if not report:
            self.guard(control=None)
        with self._lock:
            os.close(self._pipe)
            self._lost, is_lost = True, self._lost
        try:
            done = self._process.wait(0 if is_lost else REAP_SECONDS) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(REAP_SECONDS)
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
    """What to guard, and for how long the supervisor has been silent."""

    def __init__(self) -> None:
        self.guarded: dict[str, Any] = {}
        self.child: ProcessHandle | None = None
        self.supervisor: ProcessHandle | None = None
        self._silent = 0.0

    @property
    def slice(self) -> float:
        """Seconds to wait for a line at a time."""
        return min(SLICE_SECONDS, (self.guarded.get("watch") or math.inf) / 10)

    def hear(self, line: bytes) -> None:
        """Handle a line, while the processes that it names still exist."""
        self._silent = 0.0
        facts = json.loads(line)
        self.guarded.update(facts)
        if facts.get("started"):
            self.child = ProcessHandle.open(facts["pid"], facts["started"])
        if facts.get("supervisor"):
            self.supervisor = ProcessHandle.open(facts["supervisor"], facts["supervisor_started"])

    def hear_nothing(self) -> bool:
        """Record a slice of time without a line; returns whether the supervisor was killed for its silence.

        Slices are counted, not seconds: if the whole machine was suspended, so was this process, and that counts as
        one slice.
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
            self.supervisor.wait(REAP_SECONDS)

    def clean_up(self) -> None:
        """Kill and delete what is left of the node, and report to the driver."""
        kill_tree(self.child, self.guarded["marker"])
        _delete(self.guarded["directories"])
        _tell(self.guarded, "ReportGone", succeeded=False)


def _tell(guarded: dict[str, Any], request: str, **content: Any) -> None:
    if not guarded.get("control"):
        return
    from tfos_ml.protocol import control_messages
    from tfos_ml.protocol.control_client import ControlClient

    with contextlib.suppress(Exception):  # the driver may have ended, too
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
            return  # a partial line: the writer died
        *lines, rest = (rest + read).split(b"\n")
        yield from lines


def main(arguments: Sequence[str]) -> None:
    """Read what to guard, until end-of-file or until the supervisor is frozen; then clean up."""
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
