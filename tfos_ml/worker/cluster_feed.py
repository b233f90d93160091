"""The ``DataFeed`` of a ``TFCluster``: the rows of successive calls of ``train`` and ``inference``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tfos_ml.common.timeouts import TAKEN_SECONDS
from tfos_ml.data import rdd_to_arrow
from tfos_ml.data.arrow import concat_padded, spec_of, to_numpy, to_storage
from tfos_ml.data.arrow_to_rdd import UnnamedFields, field_of, to_elements
from tfos_ml.data.schema import Array, FeedSchema
from tfos_ml.data.spool import Chunk, read_chunk
from tfos_ml.errors import CollectiveCallError
from tfos_ml.protocol.channel import Channel
from tfos_ml.protocol.messages import Answers, ChunkReleased, EndOfCall, RowsRead
from tfos_ml.worker.data_feed import DataFeed
from tfos_ml.worker.inbox import Inbox


class ClusterFeed(DataFeed):
    """A stream of this node's rows; made by ``ctx.get_data_feed()`` on a node of a ``TFCluster``.

    Rows of an RDD are its elements, except that lists of numbers become NumPy arrays. Rows of a DataFrame are tuples of
    its columns. The rows of one call of ``train`` come ``num_epochs`` times; with 0, until the train function stops
    reading. The feed does not end before ``shutdown``.
    """

    keeps_lists = False  # whether lists of numbers come as lists, which is slower; for tfos_ml.compat

    def __init__(
        self,
        inbox: Inbox,
        channel: Channel,
        stream: str,
        input_mapping: Mapping[str, str] | None,
        train_mode: bool,
        directory: str,
        pad_value: float,
    ):
        super().__init__(inbox, channel, FeedSchema(()), 1, train_mode, directory, pad_value)
        self._stream = stream
        self._mapping = input_mapping
        self._unnamed = UnnamedFields(input_mapping or {})
        self._directory = Path(directory)
        self._inference: int | None = None  # of the current batch
        self._runs: deque[list[int]] = deque()  # inference and number of unanswered rows, in order
        self._answer_files = 0
        self._reported_at = 0.0

    def _read(self) -> Iterator[pa.RecordBatch]:
        kept: list[Chunk] = []
        while (item := self._inbox.next_item(self._stream, timeout=None)) is not None:
            if isinstance(item, EndOfCall):
                yield from self._replay(kept, item.epochs)
                self._channel.send(RowsRead(call=item.number))
                kept = []
                continue
            self._check_mode(item)
            yield from read_chunk(item.path)
            if item.is_kept:
                kept.append(item)
                self._channel.send(RowsRead(chunk=item.path))
            else:
                self._channel.send(ChunkReleased(item.path))

    def _check_mode(self, chunk: Chunk) -> None:
        if self._train_mode and chunk.inference is not None:
            raise CollectiveCallError("rows of inference() need ctx.get_data_feed(train_mode=False)")
        self._inference = chunk.inference

    def next_batch(self, batch_size: int) -> list[Any] | dict[str, Array]:
        """The next rows, as :meth:`DataFeed.next_batch` returns them.

        For inference, a batch has fewer than `batch_size` rows if no more are there yet, so that no task waits for rows
        of others. Rows are a list; with ``input_mapping`` a dict of arrays of shape ``(rows, ...)``, by tensor. Raises
        ``ColumnNotFoundError`` if rows do not have the columns of ``input_mapping``, or fewer fields.
        """
        parts = self._take(batch_size)
        self._report_taken()
        if self._mapping is not None:
            for part in parts:
                self._unnamed.check(part)
            return {tensor: self._array(parts, column, i) for i, (column, tensor) in enumerate(self._mapping.items())}
        return [element for part in parts for element in to_elements(part, self.keeps_lists)]

    def _has_more(self, have_some: bool) -> bool:
        exhausted = self._batch is None or self._position == len(self._batch)
        if exhausted and have_some and self._inference is not None and not self._inbox.has_item(self._stream):
            return False
        return self._available()

    def _note_taken(self, rows: int) -> None:
        if self._inference is None:
            return
        if self._runs and self._runs[-1][0] == self._inference:
            self._runs[-1][1] += rows
        else:
            self._runs.append([self._inference, rows])

    def _report_taken(self) -> None:
        """Tell the supervisor from time to time that rows are being read."""
        if time.monotonic() - self._reported_at > TAKEN_SECONDS:
            self._reported_at = time.monotonic()
            self._channel.send(RowsRead())

    def _array(self, parts: Sequence[pa.RecordBatch], column: str, position: int) -> Array:
        arrays = [to_storage(field_of(part, column, position)) for part in parts]
        if not arrays:
            return to_numpy(pa.array([], pa.float32()), spec_of(pa.float32(), column, column))
        spec = spec_of(arrays[0].type, column, column)
        return concat_padded([to_numpy(a, spec, self._pad_value) for a in arrays], spec, self._pad_value)

    def batch_results(self, results: Sequence[Any]) -> None:
        """Return results of rows; raises as :meth:`DataFeed.batch_results`.

        They are numbers, text, NumPy arrays, or lists, tuples and dicts of these.
        """
        results = results.numpy() if hasattr(results, "numpy") else results  # a tensor
        self._check_results(results, sum(count for _, count in self._runs))
        for batch in rdd_to_arrow.to_batches(results):
            path = self._directory / f"answers-{self._answer_files:06d}.arrow"
            self._answer_files += 1
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            self._channel.send(Answers(str(path), self._take_runs(batch.num_rows)))

    def _take_runs(self, count: int) -> list[tuple[int, int]]:
        """Which inferences the next `count` answers belong to."""
        taken = []
        while count:
            inference, waiting = self._runs[0]
            part = min(count, waiting)
            taken.append((inference, part))
            count -= part
            self._runs[0][1] -= part
            if not self._runs[0][1]:
                self._runs.popleft()
        return taken

    def close(self) -> None:
        """Called when the train function has returned; raises ``ShapeError`` if rows for inference have no results."""
        self._check_answered(sum(count for _, count in self._runs))
