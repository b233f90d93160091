"""Brings faults about from outside: of processes, as /proc shows them, and of files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from disks import Disk, SharedMemory
from drawn_runs import ACTIONS, CLOCK, DISK, LINK, MEMORY, STORE, Fault
from places import Place, step_clock
from standalone import EXECUTOR

PAUSE_SECONDS = 2.0
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
AROUND = (*DISK, *MEMORY, *CLOCK, *STORE, *LINK)
SOON_OVER = {"frozen disk": 3.0, "failing store": 5.0, "slow link": 5.0}  # seconds
SERVERS = {
    "daemon": ("tfos_ml.agent.daemon", "pyspark.daemon"),
    "fork server": ("tfos_ml.worker.fork_server",),
    "scoring": ("tfos_ml.worker.scoring_server", "tfos_ml scoring"),
    "executor": (EXECUTOR,),
}


class Injection:
    """A fault of a run: waits for its moment, and brings it about.

    Attributes
    ----------
    time : float or None
        When it was brought about; None before, or if its moment did not come.
    missed : str
        Why it was not.
    """

    def __init__(self, fault: Fault, place: Place, directory: Path, disk: Disk | None = None):
        self._disk = disk
        self._heals: Callable[[], None] = lambda: None
        self._timer: threading.Timer | None = None
        self.fault, self._place, self._directory = fault, place, directory
        self.time: float | None = None
        self.missed = ""
        self.stopped: list[psutil.Process] = []

    def is_due(self) -> bool:
        """Whether its moment has come."""
        mark = self._directory / f"at-{self.fault.at}"
        if self.fault.phase == "idle":
            return True
        return mark.exists() and time.monotonic() >= json.loads(mark.read_text())["time"] + self.fault.seconds

    def inject(self) -> None:
        """Bring it about, and let the node go on that waits for it."""
        what = self.fault.what
        self.time = time.monotonic()
        if what in ACTIONS:
            self._go(what)
            return
        verb, _, victim = what.partition(" ")
        try:
            if self.fault.what in AROUND:
                self._around(self.fault.what)
            elif victim == "driver" or what in ("cancel", "interrupt"):
                self._to_driver(what)
            else:
                self._to_processes(verb, self._victims(victim))
        except ProcessLookupError:
            self.time, self.missed = None, "its victim had ended"
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Let the node go on that waits for the fault."""
        self._go("")

    def _go(self, what: str) -> None:
        if self.fault.phase != "idle":
            partial = self._directory / f"part-go-{self.fault.at}"
            partial.write_text(what)
            partial.rename(self._directory / f"go-{self.fault.at}")

    def _mark(self) -> dict[str, Any]:
        return dict(json.loads((self._directory / f"at-{self.fault.at}").read_text()))

    def _victims(self, victim: str) -> list[psutil.Process]:
        if victim in SERVERS:
            found = self._place.named(*SERVERS[victim])
            if victim != "scoring":  # which is a fork of another server
                found = [process for process in found if is_first(process, victim)]
            return found[self.fault.rank % len(found) :][:1] if victim == "executor" and found else found
        facts = self._mark()
        if victim == "child":
            return processes(facts["pid"])
        supervisor = facts["supervisor"]
        if victim == "supervisor":
            return processes(supervisor)
        reapers = [p for p in self._place.named("tfos reaper", "tfos_ml.agent.reaper") if guards(p, supervisor)]
        if victim == "reaper":
            return reapers
        assert victim == "all"
        return [*reapers, *processes(facts["pid"]), *processes(supervisor)]

    def _to_processes(self, verb: str, victims: list[psutil.Process]) -> None:
        if not victims:
            raise ProcessLookupError
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(SIGNALS[verb])
        if verb == "stop":
            self.stopped = victims

    def _around(self, what: str) -> None:
        """To disk, shared memory, clock, store and links."""
        place, disk = self._place, self._disk
        heals: Callable[[], None] = lambda: None  # noqa: E731
        if what in ("full disk", "frozen disk"):
            if disk is None:
                raise ProcessLookupError
            (disk.fill if what == "full disk" else disk.freeze)()
            heals = disk.heal
        elif what == "full memory":
            if not SharedMemory.is_own:
                raise ProcessLookupError
            SharedMemory.fill()
            heals = SharedMemory.heal
        elif what in ("clock forward", "clock back"):
            if not place.clock.exists():
                raise ProcessLookupError
            step_clock(place.clock, 3600 if what == "clock forward" else -3600)
        elif what == "failing store":
            assert place.store is not None
            place.store.fail(lambda method, path: True, 503)
            heals = place.store.heal
        else:
            assert place.network is not None
            host = "ab"[self.fault.rank % 2]
            (place.network.cut_off if what == "cut link" else place.network.slow_down)(host)
            heals = partial(place.network.join if what == "cut link" else place.network.speed_up, host)
        self._heals = heals
        if what in SOON_OVER:
            self._timer = threading.Timer(SOON_OVER[what], self._heal)
            self._timer.start()

    def _heal(self) -> None:
        heals, self._heals = self._heals, lambda: None
        heals()

    def _to_driver(self, what: str) -> None:
        driver = self._place.driver
        if what == "cancel":
            driver.tell("cancel")
        elif what == "interrupt":
            os.kill(driver.pid, signal.SIGINT)
        elif what == "kill driver":
            os.kill(driver.pid, signal.SIGKILL)
        else:
            os.kill(driver.pid, signal.SIGSTOP)
            threading.Timer(PAUSE_SECONDS, os.kill, (driver.pid, signal.SIGCONT)).start()

    def undo(self) -> None:
        """Let go on what stands still, and who waits."""
        for process in self.stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        self.stopped = []
        if self._timer is not None:
            self._timer.cancel()
        self._heal()


def processes(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return [process]
    return []


def is_first(process: psutil.Process, victim: str) -> bool:
    """Whether it is no fork of the same program: a JVM starts daemons, whose forks may outlive them."""
    try:
        parent = process.parent()
        if victim == "daemon":
            return parent is not None and parent.name() == "java"
        return parent is None or parent.cmdline() != process.cmdline()
    except psutil.Error:
        return False


def guards(process: psutil.Process, supervisor: int) -> bool:
    """Whether a reaper belongs to a supervisor: it reads from a pipe of that."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{process.pid}/fd/0") in links_of(supervisor)
    return False


def links_of(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found
