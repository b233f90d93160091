"""The supervisor's side of a feed that comes from other tasks: ``TFCluster.train`` and ``.inference``.

Rows to train on are *staged*, block by block, and come before the train function only once
their whole partition has arrived and the driver has granted it: a feed task that Spark runs
twice feeds its rows once. Rows to infer from are announced as they come, and what the train
function answers goes back to where they came from (an *exchange*).

Used by three kinds of threads: those that serve feed tasks, the one that hears the driver,
and the supervisor's own. What is sent to the process is sent under the lock, for the sake of its
order; so `send` must not wait for the process (:class:`tfos_ml.protocol.channel.QueuedChannel`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.agent.feeder import WINDOW_BYTES
from tfos_ml.data import blocks, spool
from tfos_ml.protocol.messages import ChunkReady, EndOfInput, Message, RowCounts, Segment

ROOM_POLL_SECONDS = 1.0
FED_BY_TASKS = RowCounts(why="is fed by TFCluster, which knows no end of the rows before shutdown")


@dataclass
class _Announced:
    """A chunk that the train function may read."""

    size: int
    is_kept: bool
    feed_timeout: float
    is_read: bool = False  # once, where it is kept to be read again


@dataclass
class Exchange:
    """Rows of one task that wait for their results; `answers` holds messages, or why there are no more."""

    number: int
    feed_timeout: float
    waiting: int = 0  # rows without a result
    answers: queue.SimpleQueue[pa.RecordBatch | str] = field(default_factory=queue.SimpleQueue)


class RowReceiver:
    """One node's rows from feed tasks, on their way to its TensorFlow process.

    Parameters
    ----------
    directories : spool.SpoolDirectories
        Where the spool is.
    send : callable
        Sends a message to the TensorFlow process, without waiting for it.

    Attributes
    ----------
    location : str or None
        Where feed tasks reach it.
    """

    def __init__(self, directories: spool.SpoolDirectories, send: Callable[[Message], None]):
        self._directories = directories
        self._send = send
        self._changed = threading.Condition()
        self._numbers = count()
        self._outstanding: dict[str, _Announced] = {}  # by path
        self._pending: dict[int, float] = {}  # calls whose rows have all come, with their time-outs
        self._held_up: list[float] = []  # time-outs of those that wait for room
        self._exchanges: dict[int, Exchange] = {}
        self._touched = time.monotonic()
        self._heard = 0
        self._input_ended = False
        self._over: str | None = None
        self._problem: Exception | None = None
        self.location: str | None = None
        self.rows = {"train": 0, "validation": 0}
        self.skipped = 0
        self.bytes = 0
        self.reading: str | None = None
        self.keeps_rows = False
        self.complete = False

    # For feed tasks

    def wait_for_room(self, feed_timeout: float) -> bool:
        """Wait until more rows may come; False if none are wanted any more."""
        with self._changed:
            self._held_up.append(feed_timeout)
            while self._over is None and self._used() >= WINDOW_BYTES:
                self._changed.wait(ROOM_POLL_SECONDS)
            self._held_up.remove(feed_timeout)
            return self._over is None

    def _used(self) -> int:
        return sum(chunk.size for chunk in self._outstanding.values() if not chunk.is_kept)

    def store(self, message: pa.RecordBatch) -> spool.Chunk:
        """Write a block to the spool, where nobody knows of it yet.

        Raises
        ------
        spool.NoRoomError
            If it fits nowhere; the supervisor then fails with it, too.
        """
        rows, block = blocks.unpack(message)
        try:
            return spool.write_block(self._directories, f"block-{next(self._numbers):06d}", block, rows)
        except spool.NoRoomError as error:
            self.fail(error)
            raise

    def commit(self, stream: str, chunks: list[spool.Chunk], epochs: int, feed_timeout: float) -> None:
        """Put stored rows before the train function; they are kept if they are to be replayed."""
        with self._changed:
            for chunk in chunks:
                self._announce(stream, replace(chunk, is_kept=epochs != 1), feed_timeout)

    def fail(self, problem: Exception) -> None:
        """Have the supervisor fail with an error: what has become of rows cannot be known any more."""
        self._problem = self._problem or problem

    def discard(self, chunks: list[spool.Chunk]) -> None:
        """Forget stored rows."""
        for chunk in chunks:
            Path(chunk.path).unlink(missing_ok=True)

    def open_exchange(self, feed_timeout: float) -> Exchange:
        """Begin an exchange of rows for results."""
        with self._changed:
            exchange = Exchange(next(self._numbers), feed_timeout)
            if self._over is not None:
                exchange.answers.put(self._over)
            self._exchanges[exchange.number] = exchange
            return exchange

    def ask(self, stream: str, exchange: Exchange, message: pa.RecordBatch) -> None:
        """Put a block of an exchange before the train function at once."""
        chunk = replace(self.store(message), exchange=exchange.number)
        with self._changed:
            self._announce(stream, chunk, exchange.feed_timeout)
            exchange.waiting += chunk.rows

    def close_exchange(self, exchange: Exchange) -> None:
        """End an exchange; answers that still come are for nobody."""
        with self._changed:
            self._exchanges.pop(exchange.number, None)

    def _announce(self, stream: str, chunk: spool.Chunk, feed_timeout: float) -> None:
        if self._shortest_timeout() is None:  # nothing has waited so far
            self._touch()
        self._outstanding[chunk.path] = _Announced(chunk.size, chunk.is_kept, feed_timeout)
        self.rows["train"] += chunk.rows
        self.bytes += chunk.size
        self._send(ChunkReady(stream, chunk))

    # For the driver

    def hear(self, answer: dict[str, Any]) -> None:
        """Take up what the driver has announced since; the same again is nothing new."""
        for announcement in answer.get("announcements", ()):
            with self._changed:
                if announcement["serial"] <= self._heard:
                    continue
                self._heard = announcement["serial"]
                if announcement["kind"] == "end_of_input":
                    self._input_ended = True
                else:
                    self._end_segment(**{k: v for k, v in announcement.items() if k not in ("kind", "serial")})

    def _end_segment(self, stream: str, number: int, epochs: int, feed_timeout: float) -> None:
        """All rows of one call of ``train`` have come."""
        self._touch()
        if self._over is None:
            self._pending[number] = feed_timeout
            self._send(Segment(stream, number, epochs))

    def progress(self) -> dict[str, Any]:
        """What the driver is told."""
        with self._changed:
            return {
                "rows": self.rows["train"],
                "complete": self.complete,
                "heard": self._heard,
                "pending": list(self._pending),
                "over": self._over is not None,
            }

    # For the supervisor

    def until_end(self) -> Iterator[None]:
        """Goes on until the driver has announced the end of the input.

        Raises
        ------
        FeedTimeoutError
            If rows have waited for the ``feed_timeout`` of their call and none was read.
        spool.NoRoomError
            If rows had no room.
        NodeLostError
            If the driver could not be asked whether rows count.
        """
        while not self._input_ended:
            if self._problem is not None:
                raise self._problem
            with self._changed:
                timeout = self._shortest_timeout()
                if timeout is not None and time.monotonic() - self._touched > timeout:
                    raise errors.FeedTimeoutError(
                        f"the train function has neither read nor answered rows for feed_timeout={timeout:g} s "
                        "while some were waiting. Read them with feed.next_batch(), answer those of inference() with "
                        "feed.batch_results(), end the feed with feed.terminate(), or raise feed_timeout"
                    )
            yield None

    def _shortest_timeout(self) -> float | None:
        """Of all that waits for the train function; None if nothing does."""
        unread = [chunk.feed_timeout for chunk in self._outstanding.values() if not chunk.is_read]
        unanswered = [exchange.feed_timeout for exchange in self._exchanges.values() if exchange.waiting]
        return min([*unread, *unanswered, *self._pending.values(), *self._held_up], default=None)

    def _touch(self) -> None:
        self._touched = time.monotonic()

    def touch(self) -> None:
        """Note that the process has read rows."""
        with self._changed:
            self._touch()

    def has_room(self) -> bool:
        """True: it is the feed tasks that wait for room."""
        return True

    def release(self, path: str) -> None:
        """Delete a chunk that has been read for the last time."""
        with self._changed:
            self._touch()
            del self._outstanding[path]
            self._changed.notify_all()
        Path(path).unlink()

    def chunk_read(self, path: str) -> None:
        """Note that a chunk has been read, and will be again."""
        with self._changed:
            self._touch()
            self._outstanding[path].is_read = True

    def segment_read(self, number: int) -> None:
        """Note that all rows of one call of ``train`` have been read."""
        with self._changed:
            self._touch()
            self._pending.pop(number, None)  # none are once no more rows are wanted

    def answered(self, path: str, runs: list[tuple[int, int]]) -> None:
        """Send results back: a file of them, and to which exchange how many belong, in order."""
        answers = spool.read_chunk(path)
        batch = next(answers)
        with self._changed:
            self._touch()
            for number, rows in runs:
                while rows:
                    if not batch.num_rows:
                        batch = next(answers)
                    part, batch = batch.slice(0, rows), batch.slice(min(rows, batch.num_rows))
                    rows -= part.num_rows
                    if number in self._exchanges:
                        self._exchanges[number].waiting -= part.num_rows
                        self._exchanges[number].answers.put(blocks.pack([part]))
        Path(path).unlink()

    def counts(self) -> RowCounts:
        """Instead of row counts, why there are none."""
        return FED_BY_TASKS

    def finish(self) -> None:
        """Announce the end of the input to the process."""
        self.close()
        self.complete = True
        self._send(EndOfInput())

    def close(self) -> None:
        """Want no more rows."""
        with self._changed:
            self._over = self._over or "its train function reads no more rows: it has returned, or called terminate()"
            self._pending.clear()
            for exchange in self._exchanges.values():
                exchange.answers.put(self._over)
            self._changed.notify_all()
