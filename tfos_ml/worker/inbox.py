"""What the supervisor tells the TensorFlow process, sorted so that each reader can wait for its own."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tfos_ml.data.spool import Chunk
from tfos_ml.errors import FeedTimeoutError
from tfos_ml.protocol.channel import ChannelClosedError, Message


@dataclass(frozen=True)
class Segment:
    """After the chunks of one call of ``TFCluster.train``: how often they are to be read."""

    number: int
    epochs: int


class Inbox:
    """Keeps what has come; a thread reads the channel.

    Parameters
    ----------
    messages : iterator of dict
        From the supervisor.
    timeout : float
        Seconds that any wait for a message may last.
    at_end : callable, optional
        Called, in a thread, when the nodes that train have ended.
    """

    def __init__(self, messages: Iterator[Message], timeout: float, at_end: Callable[[], object] = lambda: None):
        self._messages = messages
        self._timeout = timeout
        self._at_end = at_end
        self._changed = threading.Condition()
        self._closed = False
        self._heard = time.monotonic()
        self._chunks: dict[str, deque[Chunk | Segment]] = defaultdict(deque)
        self._barriers: deque[Message] = deque()
        self._agreement: dict[str, Any] | None = None
        self._end_of_input = False
        self._port_released = False
        self._checkpoints_taken = 0
        self.cluster_done = False
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def _read(self) -> None:
        try:
            for message in self._messages:
                with self._changed:
                    self._heard = time.monotonic()
                    self._sort(message)
                    self._changed.notify_all()
        finally:  # also after a message that is none, or those who wait would do so for ever
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def _sort(self, message: Message) -> None:
        match message.pop("type"):
            case "chunk":
                self._chunks[message["stream"]].append(Chunk(**message["chunk"]))
            case "segment":
                self._chunks[message["stream"]].append(Segment(message["number"], message["epochs"]))
            case "end_of_input":
                self._end_of_input = True
            case "agreement":
                self._agreement = message["words"]
            case "barrier":
                self._barriers.append(message)
            case "port_released":
                self._port_released = True
            case "checkpoint_taken":
                self._checkpoints_taken += 1
            case "cluster_done":
                self.cluster_done = True
                self._at_end()
            case unknown:
                raise AssertionError(f"unknown message {unknown!r}")

    def _wait(self, ready: Callable[[], Any], what: str, timeout: float | None) -> None:
        """Wait until `ready`, for as long as something comes at least every `timeout` seconds."""
        waiting_since = time.monotonic()
        with self._changed:
            while not ready():
                if self._closed:
                    raise ChannelClosedError("the node's supervisor is gone")
                left = None if timeout is None else max(waiting_since, self._heard) + timeout - time.monotonic()
                if left is not None and left <= 0:
                    raise FeedTimeoutError(
                        f"{what} did not come within feedTimeout={self._timeout:g} s; raise feedTimeout"
                    )
                self._changed.wait(left)

    def next_chunk(self, stream: str) -> Chunk | None:
        """The next chunk of a stream; None at the end of the input."""
        item = self.next_item(stream, self._timeout)
        assert not isinstance(item, Segment)
        return item

    def next_item(self, stream: str, timeout: float | None) -> Chunk | Segment | None:
        """The next chunk of a stream, or what comes after the chunks of a segment; None at the end of the input."""
        with self._changed:
            chunks = self._chunks[stream]
        self._wait(lambda: chunks or self._end_of_input, "more rows", timeout)
        return chunks.popleft() if chunks else None

    def has_item(self, stream: str) -> bool:
        """Whether :meth:`next_item` would return at once."""
        with self._changed:
            return bool(self._chunks[stream]) or self._end_of_input

    def agreement(self) -> dict[str, Any]:
        """What all nodes said of their rows, by label."""
        self._wait(lambda: self._agreement, "the row counts of all nodes", self._timeout)
        assert self._agreement is not None
        return self._agreement

    def barrier(self) -> str | None:
        """Wait until all have reached the barrier; returns what is wrong, if anything."""
        self._wait(lambda: self._barriers, "the other nodes", self._timeout)
        error: str | None = self._barriers.popleft()["error"]
        return error

    def port_released(self) -> None:
        """Wait until the supervisor holds the port no longer."""
        self._wait(lambda: self._port_released, "the reserved port", self._timeout)

    def checkpoints_taken(self, count: int) -> None:
        """Wait until so many checkpoints have gone to the driver, or could not."""
        self._wait(lambda: self._checkpoints_taken >= count, "the driver's word on a checkpoint", self._timeout)

    def wait_cluster_done(self) -> None:
        """Wait, as long as it takes, until the nodes that train have ended."""
        self._wait(lambda: self.cluster_done, "", None)
