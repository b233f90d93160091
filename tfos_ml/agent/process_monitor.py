"""Reads the messages of a node's TensorFlow process, and notices its end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

from tfos_ml.agent.child_process import ChildProcess
from tfos_ml.agent.node_events import ProcessExited
from tfos_ml.common.timeouts import DRAIN_SECONDS, EXIT_SECONDS
from tfos_ml.protocol.channel import QueuedChannel
from tfos_ml.protocol.messages import Message


class _Wake:
    """A queue item that is not a message."""


class ProcessMonitor:
    """Reads the messages of a process in a thread, which calls `take` with each; :meth:`events` has those left over."""

    def __init__(self, child: ChildProcess, channel: QueuedChannel, take: Callable[[Message], bool]):
        self._child = child
        self._channel = channel
        self._take = take
        self._messages: queue.SimpleQueue[Message | Exception | _Wake | None] = queue.SimpleQueue()
        self._received_at = time.monotonic()
        self._ended_at: float | None = None  # when the end of the process was noticed, by ``time.monotonic()``
        self._has_exited = False

    def start(self) -> None:
        threading.Thread(target=self._read, name="messages", daemon=True).start()

    def _read(self) -> None:
        end = None
        try:
            for message in self._channel:
                self._received_at = time.monotonic()
                if not self._take(message):
                    self._messages.put(message)
        except Exception as error:  # raised where the messages are awaited
            end = error
        self._messages.put(end)

    def wake(self) -> None:
        """Make :meth:`events` return; may be called from any thread."""
        self._messages.put(_Wake())

    @property
    def silent(self) -> float | None:
        """Seconds since the last message; None once the process has exited."""
        return None if self._has_exited or self._ended_at else time.monotonic() - self._received_at

    def events(self, timeout: float) -> Iterator[Message | ProcessExited]:
        """The messages so far; after the last one, the exit of the process.

        Waits for the first message, at most `timeout` seconds, or until :meth:`wake` is called. Raises
        ``VersionMismatchError`` if the process sends something that is no message, ``NodeExitError`` if the process
        does not read messages, and what `take` has raised.
        """
        try:
            message = self._messages.get(timeout=timeout) if timeout else self._messages.get_nowait()
            while True:
                match message:
                    case None:
                        yield from self._exit()
                    case Exception():
                        raise message
                    case _Wake():
                        pass
                    case _:
                        yield message
                message = self._messages.get_nowait()
        except queue.Empty:
            pass
        yield from self._look()

    def _look(self) -> Iterator[ProcessExited]:
        """Check whether a process has ended whose connection is still open."""
        if self._has_exited:
            return
        if self._child.returncode is None:
            self._channel.check()
            return
        self._ended_at = self._ended_at or time.monotonic()
        if time.monotonic() - self._ended_at > DRAIN_SECONDS:
            yield from self._exit()  # its descendants may keep the connection open

    def _exit(self) -> Iterator[ProcessExited]:
        if not self._has_exited:
            self._child.wait(EXIT_SECONDS)  # the process normally ends right after its connection
            self._has_exited = True
            yield ProcessExited(self._child.returncode)
