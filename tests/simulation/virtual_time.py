"""Virtual time, and what stands for ``time``, ``threading`` and ``queue`` in it: threads are greenlets of one process.

One seed decides all. A thread runs until it waits, so nothing happens at the same time, and nothing really waits.
"""

from __future__ import annotations

import heapq
import queue
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

now_in: World  # the world whose time it is


class Process:
    """What is killed, and stands still, as a whole: its threads never run again, or later."""

    def __init__(self, name: str, host: str):
        self.name, self.host = name, host
        self.is_dead = False
        self.stands_until = 0.0
        self.returncode: int | None = None
        self._at_end: list[Callable[[], None]] = []

    def end(self, returncode: int) -> None:
        """End it: -9 is SIGKILL. A second end changes nothing."""
        if not self.is_dead:
            self.is_dead, self.returncode = True, returncode
            now_in.note(self.name, "ends", returncode)
            for action in self._at_end:
                now_in.at(0.0, action)

    def when_it_ends(self, action: Callable[[], None]) -> None:
        """Call something when it has ended, which may be now."""
        if self.is_dead:
            now_in.at(0.0, action)
        else:
            self._at_end.append(action)

    def stand(self, seconds: float) -> None:
        now_in.note(self.name, "stands for", round(seconds, 3))
        self.stands_until = max(self.stands_until, now_in.now + seconds)


class Fiber:
    """One thread of a process."""

    __slots__ = ("ended", "greenlet", "is_done", "name", "process", "ticket")

    def __init__(self, process: Process, name: str, function: Callable[..., Any], args: tuple[Any, ...]):
        self.process, self.name = process, name
        self.ticket = 0  # of the wait that it is in
        self.is_done = False
        self.ended: Condition | None = None  # if anybody waits for its end
        self.greenlet = greenlet(lambda _: self._run(function, args), now_in.hub)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            function(*args)
        except Exception as error:
            now_in.crashed(self, error)
        self.is_done = True
        if self.ended is not None:
            self.ended.notify_all()


class World:
    """The clock, all that is to come, and the draws of one seed; a context manager, in which it is the time."""

    def __init__(self, seed: int):
        self.seed = seed
        self.draw = random.Random(seed)
        self.now = 0.0
        self.hub = getcurrent()
        self.fiber: Fiber | None = None  # that runs
        self.trace: list[tuple[Any, ...]] = []
        self.crashes: list[tuple[str, Exception]] = []
        self.parts: Any = SimpleNamespace()  # of what is simulated, for those that stand in for it
        self._ahead: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._fibers: list[Fiber] = []
        self._is_over = False

    def __enter__(self) -> World:
        global now_in
        now_in = self
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._ahead.clear()
        for fiber in self._fibers:
            if not fiber.is_done:
                self.fiber = fiber
                fiber.greenlet.throw(GreenletExit)

    def note(self, *what: Any) -> None:
        """Add to the trace, which is the same for the same seed."""
        self.trace.append((round(self.now, 6), *what))

    def at(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Call something after so many seconds."""
        self._number += 1
        heapq.heappush(self._ahead, (self.now + seconds, self._number, action, args))

    def start(self, process: Process, name: str, function: Callable[..., Any], *args: Any) -> Fiber:
        fiber = Fiber(process, name, function, args)
        self._fibers.append(fiber)
        self._number += 1
        fiber.ticket = self._number
        self.at(0.0, self._resume, fiber, fiber.ticket, True)
        return fiber

    def park(self, seconds: float | None) -> bool:
        """Wait in the thread that runs until :meth:`wake`, at most so many seconds; returns whether it was woken."""
        if self._is_over:
            raise GreenletExit
        fiber = self.fiber
        assert fiber is not None
        self._number += 1
        fiber.ticket = self._number
        if seconds is not None:
            self.at(max(0.0, seconds), self._resume, fiber, fiber.ticket, False)
        return self.hub.switch()  # type: ignore[no-any-return]

    def wake(self, fiber: Fiber) -> None:
        """End the wait of a thread."""
        if fiber.ticket and not self._is_over:
            self.at(0.0, self._resume, fiber, fiber.ticket, True)

    def _resume(self, fiber: Fiber, ticket: int, is_woken: bool) -> None:
        process = fiber.process
        if fiber.ticket != ticket or process.is_dead:
            return
        if process.stands_until > self.now:
            self.at(process.stands_until - self.now, self._resume, fiber, ticket, is_woken)
            return
        fiber.ticket, self.fiber = 0, fiber
        fiber.greenlet.switch(is_woken)
        self.fiber = None

    def crashed(self, fiber: Fiber, error: Exception) -> None:
        """An error has ended a thread."""
        self.note(fiber.name, "crashes", type(error).__name__)
        self.crashes.append((fiber.name, error))

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until something is true; False if it is not within so many seconds, or nothing more happens."""
        ahead, deadline = self._ahead, self.now + seconds
        while ahead and ahead[0][0] <= deadline:
            self.now, _, action, args = heapq.heappop(ahead)
            action(*args)
            if until():
                return True
        return until()


def process() -> Process:
    assert now_in.fiber is not None
    return now_in.fiber.process


class Thread:
    def __init__(self, target: Callable[..., Any], args: tuple[Any, ...] = (), name: str = "", daemon: bool = True):
        self._start = lambda: now_in.start(process(), f"{process().name} {name}", target, *args)
        self._fiber: Fiber | None = None

    def start(self) -> None:
        self._fiber = self._start()

    @property
    def ident(self) -> int | None:
        return None if self._fiber is None else id(self._fiber)

    def join(self, timeout: float | None = None) -> None:
        fiber = self._fiber
        if fiber is not None and not fiber.is_done:
            fiber.ended = fiber.ended or Condition()
            fiber.ended.wait_for(lambda: fiber.is_done, timeout)

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._fiber.is_done


class Condition:
    """As of ``threading``; no other thread ever holds its lock, since threads switch only when they wait."""

    def __init__(self) -> None:
        self._waiting: list[Fiber] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        fiber = now_in.fiber
        assert fiber is not None
        self._waiting.append(fiber)
        is_woken = now_in.park(timeout)
        if not is_woken and fiber in self._waiting:
            self._waiting.remove(fiber)
        return is_woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else now_in.now + timeout
        while not (result := predicate()):
            left = None if deadline is None else deadline - now_in.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            now_in.wake(fiber)


class Event:
    def __init__(self) -> None:
        self._is_set = False
        self._changed = Condition()

    def set(self) -> None:
        self._is_set = True
        self._changed.notify_all()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._changed.wait_for(lambda: self._is_set, timeout)
        return self._is_set


class SimpleQueue:
    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._reader: Fiber | None = None  # that waits; there is never more than one

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._reader is not None:
            now_in.wake(self._reader)

    def get(self, timeout: float | None = None) -> Any:
        if not self._items:
            self._reader = now_in.fiber
            now_in.park(timeout)
            self._reader = None
            if not self._items:
                raise queue.Empty
        return self._items.popleft()

    def is_empty(self) -> bool:
        """Whether nothing is there now."""
        return not self._items

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


def sleep(seconds: float) -> None:
    now_in.park(seconds)


time = SimpleNamespace(monotonic=lambda: now_in.now, time=lambda: now_in.now, sleep=sleep)
threading = SimpleNamespace(Thread=Thread, Condition=Condition, Event=Event, Lock=Condition)
queues = SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty)
