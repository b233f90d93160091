"""Whether the TensorFlow process of a node lives, and what its end means."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from tfos_ml.agent.process import ChildProcess, describe_exit
from tfos_ml.errors import NodeExitError, VersionMismatchError
from tfos_ml.protocol.channel import QueuedChannel
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.messages import Heartbeat, Message, Returned

COLLATERAL_SECONDS = 5.0
CULPRIT_SECONDS = 10.0  # after a heartbeat timeout, within which a stuck process is found out by its own supervisor
EXIT_SECONDS = 10.0
DRAIN_SECONDS = 1.0  # after the end of a process, within which what it has sent is read
UNFINISHED = (
    "the process exited with code 0 before its train function had returned: something in it, or in a library, called "
    "os._exit(0) or C's exit(0), maybe on a signal. Rows may be untrained, so it is no success. Return from the train "
    "function instead"
)


class ProcessFailure(Exception):  # noqa: N818  (it carries a Failure)
    """Raised when a process has failed of itself; `failure` has no node's name yet."""

    def __init__(self, failure: Failure):
        super().__init__(failure.message)
        self.failure = failure


class _Wake:
    """Stands for no message."""


class ProcessMonitor:
    """Reads the messages of a process in a thread, and notes its heartbeats, its failure and its exit.

    A failure that may be the consequence of another node's (a broken collective, an abort) is *collateral*: it is due
    only once all other nodes have shown that they live, or after a time in which the culprit must have been found.
    """

    def __init__(self, child: ChildProcess, channel: QueuedChannel, heartbeat_timeout: float, has_peers: bool):
        self._child = child
        self._channel = channel
        self._timeout = heartbeat_timeout
        self._has_peers = has_peers
        self._messages: queue.SimpleQueue[Message | VersionMismatchError | _Wake | None] = queue.SimpleQueue()
        self._heard = time.monotonic()
        self._due_at = 0.0
        self._ended_at: float | None = None  # ``time.monotonic()`` of when it was found ended
        self.has_exited = False
        self._has_returned = False  # the train function
        self.failure: Failure | None = None  # without the node's name
        self.serves = False  # whether its train function only waits in ``tf.distribute.Server.join``
        self.broken_at: float | None = None  # ``time.monotonic()`` of an exit that may be collateral

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, name="messages", daemon=True).start()

    def _read(self) -> None:
        end = None
        try:
            for message in self._channel:
                self._heard = time.monotonic()
                self._messages.put(message)
        except VersionMismatchError as error:
            end = error
        self._messages.put(end)

    def wake(self) -> None:
        """Have :meth:`messages` wait no longer; from any thread."""
        self._messages.put(_Wake())

    @property
    def silent(self) -> float | None:
        """Seconds since the last message; None once the process has exited."""
        return None if self.has_exited else time.monotonic() - self._heard

    def messages(self, timeout: float) -> Iterator[Message]:
        """The messages that have come and are not for the monitor.

        Waits for the first, at most `timeout` seconds, or until :meth:`wake` is called. Raises
        ``VersionMismatchError`` if the process sends what is no message, ``NodeExitError`` if it has closed its
        connection and does not exit.
        """
        try:
            message = self._messages.get(timeout=timeout) if timeout else self._messages.get_nowait()
            while True:
                match message:
                    case None:
                        self._note_exit()
                    case VersionMismatchError():
                        raise message
                    case _Wake():
                        pass
                    case Heartbeat():
                        self.serves = message.serves
                    case Failure():
                        self.failure = message
                    case Returned():
                        self._has_returned = True
                    case _:
                        yield message
                message = self._messages.get_nowait()
        except queue.Empty:
            pass

    def _note_exit(self) -> None:
        self._child.wait(EXIT_SECONDS)  # it follows the end of the connection at once
        returncode = self._child.returncode
        self.has_exited = True
        if returncode == 0 and self.failure is None and self._has_returned:
            return
        if returncode is None:
            raise NodeExitError("the process closed its channel but does not end")
        code, signal_name, sentence = describe_exit(returncode)
        failure = self.failure or Failure(NodeExitError, f"the process {sentence}" if returncode else UNFINISHED)
        self.failure = replace(failure, exit_code=code, signal=signal_name)
        now = self._due_at = time.monotonic()
        if self._has_peers and (failure.collateral or signal_name == "SIGABRT"):
            self.broken_at = now
            self._due_at = now + self._timeout + CULPRIT_SECONDS

    def check(self) -> None:
        """Raise ``NodeExitError`` if a process that has not exited is stuck."""
        if self.has_exited:
            return
        if self._child.returncode is not None:
            self._ended_at = self._ended_at or time.monotonic()
            if time.monotonic() - self._ended_at > DRAIN_SECONDS:
                self._note_exit()  # what it has forked and left behind may hold its connection open
            return
        self._channel.check()
        if time.monotonic() - self._heard > self._timeout:
            raise NodeExitError(
                f"the process gave no sign of life for {self._timeout:g} s (stopped, or stuck in C code)"
            )

    def is_failure_due(self, peers_live: bool) -> bool:
        """Whether the failure is the node's own; `peers_live` if all other nodes have lived since the exit."""
        if self.failure is None or not self.has_exited:
            return False
        now = time.monotonic()
        is_first = self.broken_at is not None and peers_live and now - self.broken_at > COLLATERAL_SECONDS
        return is_first or now >= self._due_at
