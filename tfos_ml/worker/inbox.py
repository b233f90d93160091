"""Receives messages from the supervisor; callers wait for the kind of message that they need."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

from tfos_ml.data.spool import Chunk
from tfos_ml.errors import FeedTimeoutError, VersionMismatchError
from tfos_ml.protocol import messages
from tfos_ml.protocol.channel import ChannelClosedError


class Inbox:
    """Keeps messages until they are requested; waiting ends after `timeout`. `at_end` is called when training ends."""

    def __init__(
        self, incoming: Iterator[messages.Message], timeout: float, at_end: Callable[[], object] = lambda: None
    ):
        self._incoming = incoming
        self._timeout = timeout
        self._at_end = at_end
        self._changed = threading.Condition()
        self._closed: Exception | None = None
        self._received_at = time.monotonic()
        self._chunks: dict[str, deque[Chunk | messages.EndOfCall]] = defaultdict(deque)
        self._barriers: deque[messages.BarrierPassed] = deque()
        self._agreement: dict[str, messages.RowCounts] | None = None
        self._end_of_input = False
        self._port_released = False
        self.preempted = False  # whether an executor of the run leaves
        self.cluster_done = False  # whether the nodes that train have ended

    def start(self) -> None:
        """Start the reading thread."""
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def _read(self) -> None:
        end: Exception = ChannelClosedError("the node's supervisor is gone")
        try:
            for message in self._incoming:
                with self._changed:
                    self._received_at = time.monotonic()
                    self._sort(message)
                    self._changed.notify_all()
        except VersionMismatchError as error:
            end = error
        finally:  # else callers would wait for ever
            with self._changed:
                self._closed = end
                self._changed.notify_all()

    def _sort(self, message: messages.Message) -> None:
        match message:
            case messages.ChunkReady():
                self._chunks[message.stream].append(message.chunk)
            case messages.EndOfCall():
                self._chunks[message.stream].append(message)
            case messages.EndOfInput():
                self._end_of_input = True
            case messages.Agreement():
                self._agreement = message.counts
            case messages.BarrierPassed():
                self._barriers.append(message)
            case messages.PortReleased():
                self._port_released = True
            case messages.Preempted():
                self.preempted = True
            case messages.ClusterDone():
                self.cluster_done = True
                self._at_end()
            case _:
                raise VersionMismatchError(f"the supervisor has sent {message!r}, which is for supervisors")

    def _wait(self, ready: Callable[[], Any], what: str, timeout: float | None) -> None:
        """Wait until `ready`; gives up when no message comes for `timeout` seconds."""
        waiting_since = time.monotonic()
        with self._changed:
            while not ready():
                if self._closed is not None:
                    raise self._closed
                left = None if timeout is None else max(waiting_since, self._received_at) + timeout - time.monotonic()
                if left is not None and left <= 0:
                    raise FeedTimeoutError(
                        f"{what} did not come within feedTimeout={self._timeout:g} s; raise feedTimeout"
                    )
                self._changed.wait(left)

    def next_chunk(self, stream: str) -> Chunk | None:
        """The next chunk of a stream; None at the end of the input."""
        item = self.next_item(stream, self._timeout)
        assert not isinstance(item, messages.EndOfCall)
        return item

    def next_item(self, stream: str, timeout: float | None) -> Chunk | messages.EndOfCall | None:
        """The next chunk of a stream, or the end of a call of ``train``; None at the end of the input."""
        with self._changed:
            chunks = self._chunks[stream]
        self._wait(lambda: chunks or self._end_of_input, "more rows", timeout)
        return chunks.popleft() if chunks else None

    def has_item(self, stream: str) -> bool:
        """Whether :meth:`next_item` would return at once."""
        with self._changed:
            return bool(self._chunks[stream]) or self._end_of_input

    def agreement(self) -> dict[str, messages.RowCounts]:
        """The row counts of all nodes, by label."""
        self._wait(lambda: self._agreement, "the row counts of all nodes", self._timeout)
        assert self._agreement is not None
        return self._agreement

    def barrier(self) -> str | None:
        """Wait until all nodes have reached the barrier; returns an error message, or None."""
        self._wait(lambda: self._barriers, "the other nodes", self._timeout)
        return self._barriers.popleft().error

    def port_released(self) -> None:
        """Wait until the supervisor has released the port."""
        self._wait(lambda: self._port_released, "the reserved port", self._timeout)

    def wait_cluster_done(self) -> None:
        """Wait, as long as it takes, until the nodes that train have ended."""
        self._wait(lambda: self.cluster_done, "", None)
