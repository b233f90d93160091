"""Receives the rows of feed tasks, for ``TFCluster.train`` and ``.inference``.

Rows for training are *staged*, block by block. The train function sees them once their whole partition has arrived and
the driver has granted it. So a feed task that Spark runs twice feeds its rows once. Rows for inference are announced to
the train function at once; its answers go back to the task that sent the rows (an :class:`InferenceCall`).

Three kinds of threads use the receiver: those that serve feed tasks, the one that gets the driver's answers, and the
supervisor's own. Messages to the process are sent under the lock to keep their order, so `send` must not wait for the
process (:class:`tfos_ml.protocol.channel.QueuedChannel`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from msgspec import structs

from tfos_ml import errors
from tfos_ml.agent.feeder import WINDOW_BYTES, RowSource, Send
from tfos_ml.common.timeouts import POLL_SECONDS, SPACE_POLL_SECONDS
from tfos_ml.data import blocks, spool
from tfos_ml.protocol import messages
from tfos_ml.protocol.control_messages import ProgressAnswer
from tfos_ml.protocol.transport import TransportServer

FED_BY_TASKS = messages.RowCounts(why="is fed by TFCluster, whose rows have no known end before shutdown")


@dataclass
class _Announced:
    """A chunk that the train function may read."""

    size: int
    is_kept: bool
    feed_timeout: float
    is_read: bool = False  # at least once; then the chunk is kept to be read again


@dataclass
class InferenceCall:
    """Rows of one task that wait for their results; `answers` holds messages, or the reason why none follow."""

    number: int
    feed_timeout: float
    waiting: int = 0  # rows without a result
    answers: queue.SimpleQueue[pa.RecordBatch | str] = field(default_factory=queue.SimpleQueue)


class RowReceiver(RowSource):
    """Passes rows from feed tasks, which connect to the server that `serve` opens, to one node's TensorFlow process."""

    example: bytes | None = None

    def __init__(
        self,
        directories: spool.SpoolDirectories,
        send: Send,
        serve: Callable[[RowReceiver], TransportServer] | None = None,
    ):
        self._serve = serve
        self._server: TransportServer | None = None
        self._directories = directories
        self._send = send
        self._changed = threading.Condition()
        self._numbers = count()
        self._outstanding: dict[str, _Announced] = {}  # by path
        self._unread_calls: dict[int, float] = {}  # calls whose rows have all come, with their timeouts
        self._held_up: list[float] = []  # timeouts of tasks that wait for space
        self._inferences: dict[int, InferenceCall] = {}
        self._touched = time.monotonic()
        self._last_announcement = 0
        self._input_ended = False
        self._refusal: str | None = None  # why feed tasks are refused
        self._is_read = False  # to the end: the train function reads no more
        self._problem: Exception | None = None
        self.location: str | None = None
        self.rows = {"train": 0, "validation": 0}
        self.skipped = 0
        self.size = 0
        self._is_terminated = self._is_stopping = False
        self._complete = False

    def start(self) -> None:
        """See :class:`RowSource`; opens the server."""
        if self._serve is not None:
            self._server = self._serve(self)
            self.location = self._server.location

    # For feed tasks

    def wait_for_room(self, feed_timeout: float) -> bool:
        """Wait for room for more rows; False if no more are read, ``FlightUnavailableError`` if the node ends."""
        with self._changed:
            self._held_up.append(feed_timeout)
            while self._refusal is None and not self._is_stopping and self._used() >= WINDOW_BYTES:
                self._changed.wait(SPACE_POLL_SECONDS)
            self._held_up.remove(feed_timeout)
            if self._is_stopping and self._refusal is None:
                raise flight.FlightUnavailableError("the node ends")
            return self._refusal is None

    def _used(self) -> int:
        return sum(chunk.size for chunk in self._outstanding.values() if not chunk.is_kept)

    def store(self, message: pa.RecordBatch) -> spool.Chunk:
        """Write a block to the spool, unannounced; without room the supervisor, too, fails with ``NoRoomError``."""
        rows, block = blocks.unpack(message)
        try:
            return spool.write_block(self._directories, f"block-{next(self._numbers):06d}", block, rows)
        except spool.NoRoomError as error:
            self.fail(error)
            raise

    def commit(self, stream: str, chunks: list[spool.Chunk], epochs: int, feed_timeout: float) -> None:
        """Announce stored rows to the train function; they are kept if they will be read again."""
        with self._changed:
            for chunk in chunks:
                self._announce(stream, replace(chunk, is_kept=epochs != 1), feed_timeout)

    def fail(self, problem: Exception) -> None:
        """Make the supervisor fail with an error, because it is unknown which rows count."""
        self._problem = self._problem or problem

    def discard(self, chunks: list[spool.Chunk]) -> None:
        for chunk in chunks:
            Path(chunk.path).unlink(missing_ok=True)

    def open_inference(self, feed_timeout: float) -> InferenceCall:
        with self._changed:
            call = InferenceCall(next(self._numbers), feed_timeout)
            if self._refusal is not None:
                call.answers.put(self._refusal)
            self._inferences[call.number] = call
            return call

    def infer(self, stream: str, call: InferenceCall, message: pa.RecordBatch) -> None:
        """Announce a block of a call to the train function."""
        chunk = replace(self.store(message), inference=call.number)
        with self._changed:
            self._announce(stream, chunk, call.feed_timeout)
            call.waiting += chunk.rows

    def close_inference(self, call: InferenceCall) -> None:
        """End a call; later answers are dropped."""
        with self._changed:
            self._inferences.pop(call.number, None)

    def _announce(self, stream: str, chunk: spool.Chunk, feed_timeout: float) -> None:
        if self._shortest_timeout() is None:  # nothing has waited so far
            self._touch()
        self._outstanding[chunk.path] = _Announced(chunk.size, chunk.is_kept, feed_timeout)
        self.rows["train"] += chunk.rows
        self.size += chunk.size
        self._send(messages.ChunkReady(stream, chunk))

    # For the driver

    def take_answer(self, answer: ProgressAnswer) -> None:
        """See :class:`RowSource`: the driver announces the ends of calls and of the input, with every answer."""
        for announcement in answer.announcements:
            with self._changed:
                if announcement.serial <= self._last_announcement:
                    continue
                self._last_announcement = announcement.serial
                if announcement.call is None:
                    self._input_ended = True
                else:
                    self._end_call(**structs.asdict(announcement.call))

    def _end_call(self, stream: str, number: int, epochs: int, feed_timeout: float) -> None:
        """All rows of one call of ``train`` have come."""
        self._touch()
        if not self._is_read:
            self._unread_calls[number] = feed_timeout
            self._send(messages.EndOfCall(stream, number, epochs))

    def progress(self) -> dict[str, Any]:
        with self._changed:
            return {
                "rows": self.rows["train"],
                "complete": self._complete,
                "last_announcement": self._last_announcement,
                "unread_calls": list(self._unread_calls),
                "stopped_reading": self._is_read,
            }

    # For the supervisor

    def feed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[float]:
        """See :class:`RowSource`; ends when the driver has announced the end of the input.

        `batches` is empty, because the node's task has ended. Raises ``FeedTimeoutError`` if rows have waited for the
        ``feed_timeout`` of their call and none was read.
        """
        while not (self._input_ended or self._is_terminated):
            with self._changed:
                timeout = self._shortest_timeout()
                if timeout is not None and time.monotonic() - self._touched > timeout:
                    raise errors.FeedTimeoutError(
                        f"the train function has neither read nor answered rows for feed_timeout={timeout:g} s "
                        "while some were waiting. Read them with feed.next_batch(), answer those of inference() with "
                        "feed.batch_results(), end the feed with feed.terminate(), or raise feed_timeout"
                    )
            yield POLL_SECONDS

    def _shortest_timeout(self) -> float | None:
        """The shortest timeout of all rows that wait for the train function; None if no rows wait."""
        unread = [chunk.feed_timeout for chunk in self._outstanding.values() if not chunk.is_read]
        unanswered = [call.feed_timeout for call in self._inferences.values() if call.waiting]
        return min([*unread, *unanswered, *self._unread_calls.values(), *self._held_up], default=None)

    def _touch(self) -> None:
        self._touched = time.monotonic()

    def handle_message(self, message: messages.Message) -> bool:
        """See :class:`RowSource`; any message about rows proves that the process reads them."""
        with self._changed:
            match message:
                case messages.Reading():
                    self._is_terminated = message.how == "terminated"
                    return True
                case messages.ChunkReleased():
                    del self._outstanding[message.path]
                    Path(message.path).unlink()
                    self._changed.notify_all()
                case messages.RowsRead():
                    if message.chunk is not None:
                        self._outstanding[message.chunk].is_read = True
                    if message.call is not None:
                        self._unread_calls.pop(message.call, None)  # none are once no more rows are wanted
                case messages.Answers():
                    self._send_back(message)
                case _:
                    return False
            self._touch()
            return True

    def _send_back(self, message: messages.Answers) -> None:
        """Pass results to their calls."""
        answers = spool.read_chunk(message.path)
        batch = next(answers)
        for number, rows in message.runs:
            while rows:
                if not batch.num_rows:
                    batch = next(answers)
                part, batch = batch.slice(0, rows), batch.slice(min(rows, batch.num_rows))
                rows -= part.num_rows
                if number in self._inferences:
                    self._inferences[number].waiting -= part.num_rows
                    self._inferences[number].answers.put(blocks.pack([part]))
        Path(message.path).unlink()

    def check(self) -> None:
        """Raise if there was no room for rows, or the driver does not answer whether rows count."""
        if self._problem is not None:
            raise self._problem

    def counts(self) -> messages.RowCounts:
        """See :class:`RowSource`; there are no counts, only the reason."""
        return FED_BY_TASKS

    def finish(self) -> None:
        self.close()
        self._complete = True
        self._send(messages.EndOfInput())

    def close(self) -> None:
        """See :class:`RowSource`; tells waiting feed tasks that no more rows are wanted."""
        with self._changed:
            self._is_read = True
            self._unread_calls.clear()
        self._refuse("its train function reads no more rows: it has returned, or called terminate()")

    def stop(self) -> None:
        """See :class:`RowSource`. The driver must not take the rows that a failed node still has for read."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._end_inferences("its node has ended")  # the server waits for its calls, these for results
        if self._server is not None:
            self._server.close()
        self._refuse("its node has ended")

    def _refuse(self, why: str) -> None:
        """Take no more rows from feed tasks."""
        with self._changed:
            self._refusal = self._refusal or why
            self._end_inferences(self._refusal)
            self._changed.notify_all()

    def _end_inferences(self, why: str) -> None:
        """Tell tasks that wait for results why none follow."""
        with self._changed:
            for call in self._inferences.values():
                call.answers.put(why)
