"""Processes that keep their identity although pids are used again and clocks are set.

A pid and the clock ticks from the boot of the machine to the start of the process name a
process for as long as the machine runs. Signals go through descriptors of processes
(``pidfd_open(2)``), which never mean another process. Where the kernel has none, the
start is compared right before: two processes that start in the same hundredth of a second
can then not be told apart.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import zlib
from pathlib import Path

from tfos_ml.common.timeouts import POLL_SECONDS


def start_ticks(pid: int) -> int | None:
    """Clock ticks from the boot of the machine to the start of a process; None if no process has this pid.

    ``psutil.Process.create_time`` is this plus the time of the boot, which changes when the clock is set.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields else None  # field 22 of proc(5)


def _stat(pid: int) -> list[bytes]:
    """The fields of a process in ``/proc``, from its state on; empty if no process has this pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return text.rpartition(b")")[2].split()  # the name before it may hold anything


def has_no_environment(pid: int) -> bool:
    """Whether a process really has no environment; ``/proc`` shows none during ``execve(2)`` either."""
    fields = _stat(pid)
    if len(fields) < 49:
        return True
    memory, code, start, end = (int(fields[number - 3]) for number in (23, 26, 50, 51))  # of proc(5)
    # A zombie and a thread of the kernel have no memory. Linux sets the address of the code last in execve.
    return memory == 0 or (code != 0 and start == end)


def start_mark(pid: int) -> str | None:
    """Eight digits for the start of a process, different after each boot; None if no process has this pid."""
    ticks = start_ticks(pid)
    return None if ticks is None else f"{zlib.crc32(f'{_boot_id()}/{ticks}'.encode()):08x}"


def has_ended(pid: int, mark: str) -> bool:
    """Whether the process of this pid and :func:`start_mark` has ended, even if nothing has waited for it.

    In a container whose process 1 waits for nobody, killed processes stay zombies.
    """
    fields = _stat(pid)
    if not fields:
        return not _exists(pid)
    return fields[0] == b"Z" or start_mark(pid) != mark


def _exists(pid: int) -> bool:
    """Whether a process with this pid exists, even if ``/proc`` hides it; psutil would report none then."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class ProcessHandle:
    """One process, never another one that gets its pid later; ``started`` is the result of :func:`start_ticks`."""

    def __init__(self, pid: int, started: int, descriptor: int | None):
        self.pid = pid
        self.started = started
        self._descriptor = descriptor

    @classmethod
    def open(cls, pid: int, started: int | None = None) -> ProcessHandle | None:
        """The process of a pid, or None if it has ended, or did not start at `started`.

        Without `started` the caller has to know that the pid is still that of the process meant: a
        child that has not been waited for.
        """
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        except (OSError, AttributeError):  # a kernel before 5.3, or forbidden
            descriptor = None
        ticks = start_ticks(pid)  # read after opening: if it is the right one, so is what was opened
        if ticks is None or (started is not None and ticks != started):
            if descriptor is not None:
                os.close(descriptor)
            return None
        return cls(pid, ticks, descriptor)

    def fileno(self) -> int:
        """A descriptor that becomes readable when it ends; raises ``OSError`` if the kernel does not support that."""
        if self._descriptor is None:
            raise OSError("this kernel has no descriptors of processes")
        return self._descriptor

    def _holds_pid(self) -> bool:
        """Whether its pid is still its own: not waited for, although it may have ended."""
        if self._descriptor is None:
            return start_ticks(self.pid) == self.started
        try:
            signal.pidfd_send_signal(self._descriptor, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it exists
        return True

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._descriptor is not None:
                signal.pidfd_send_signal(self._descriptor, number)
            elif self._holds_pid():
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill the process group that it leads while it exists; afterwards, another process may lead the group."""
        if self._holds_pid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> bool:
        """Whether it ended within `timeout` seconds."""
        if self._descriptor is not None:
            poller = select.poll()
            poller.register(self._descriptor, select.POLLIN)
            return bool(poller.poll(timeout * 1000))
        deadline = time.monotonic() + timeout
        while self._holds_pid() and _stat(self.pid)[:1] not in ([], [b"Z"]):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> ProcessHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
