"""``python -m tfos_ml.agent.reaper``: cleans up after a supervisor, however it ended.

Spark cancels tasks with SIGKILL, so a node's supervisor may have no chance to clean up. The reaper runs in a session
of its own and reads from stdin what to guard, one JSON object a line. At end-of-file, when the supervisor has closed
the pipe or died, the reaper kills the node's processes, deletes its directories and ends. If the supervisor died, the
reaper also tells the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from tfos_ml.agent.child_process import child_environment
from tfos_ml.agent.fork_client import ForkServerRef, start_process
from tfos_ml.common.pids import ProcessHandle, has_no_environment
from tfos_ml.common.timeouts import REAP_SECONDS
from tfos_ml.worker.fork_server import MARKER, NO_MARKER

MODULE = "tfos_ml.agent.reaper"
NAME = "tfos reaper"


class Reaper:
    """The supervisor's handle on its reaper, which starts on construction.

    Every process with `marker` in its environment will be killed. `environment` is that of the node; by default a
    minimal one.
    """

    def __init__(
        self, marker: str, environment: Mapping[str, str] | None = None, fork_server: ForkServerRef | None = None
    ) -> None:
        # Without the node's marker, since the reaper would kill itself.
        variables = {**(child_environment("", 1, {}) if environment is None else environment), MARKER: NO_MARKER}
        reading, self._pipe = os.pipe()
        with open(reading, "rb") as lines, open(os.devnull, "wb") as nothing:
            self._process = start_process(
                MODULE, (), variables, lines, nothing, fork_server, NAME, outlives_requester=True
            )
        os.set_blocking(self._pipe, False)  # because the reaper may stand still
        self._lost = False  # killed, or still for too long
        self._marker = marker
        self._directories: list[str] = []
        self._child: ProcessHandle | None = None
        self.guard(marker=marker, directories=[])

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
        self._write(json.dumps(facts, default=asdict).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        deadline = time.monotonic() + REAP_SECONDS
        poller = select.poll()
        poller.register(self._pipe, select.POLLOUT)
        while line and not self._lost:
            try:
                line = line[os.write(self._pipe, line) :]
            except BrokenPipeError:
                self._lost = True
            except BlockingIOError:
                self._lost = not poller.poll(1000 * max(0.0, deadline - time.monotonic()))

    def finish(self, *, report: bool) -> bool:
        """Make the reaper clean up now, and `report` that to the driver; False if this process had to clean up."""
        if not report:
            self.guard(control=None)
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


def _delete(directories: Sequence[str]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def _clean_up(guarded: dict[str, Any], child: ProcessHandle | None) -> None:
    """Kill and delete what is left of a node, and report to the driver."""
    kill_tree(child, guarded["marker"])
    _delete(guarded["directories"])
    _report_gone(guarded)


def _report_gone(guarded: dict[str, Any]) -> None:
    if not guarded.get("control"):
        return
    from tfos_ml.protocol.addresses import ControlAddress
    from tfos_ml.protocol.control_client import ControlClient
    from tfos_ml.protocol.control_messages import ReportGone

    with contextlib.suppress(Exception):  # the driver may have ended, too
        ControlClient(ControlAddress(**guarded["control"])).call(ReportGone(guarded["rank"], succeeded=False))


def main(arguments: Sequence[str]) -> None:
    """Read what to guard, until end-of-file; then clean up."""
    guarded: dict[str, Any] = {}
    child = None
    for line in sys.stdin.buffer:
        if not line.endswith(b"\n"):
            break  # the writer died
        facts = json.loads(line)
        guarded.update(facts)
        if facts.get("started"):
            child = ProcessHandle.open(facts["pid"], facts["started"])  # while the process still exists
    if guarded:
        _clean_up(guarded, child)


if __name__ == "__main__":
    main(sys.argv[1:])
