"""``DataFeed``: gives train functions the rows as they arrive, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfos_ml.data.arrow import concat_padded, to_numpy
from tfos_ml.data.schema import ROW_COLUMN, Array, FeedSchema
from tfos_ml.data.spool import Chunk, read_chunk
from tfos_ml.errors import CollectiveCallError, ShapeError
from tfos_ml.protocol.channel import Channel
from tfos_ml.protocol.messages import ChunkReleased, Reading, Results
from tfos_ml.worker.inbox import Inbox

RESULT_COLUMN = "result"


class DataFeed:
    """A stream of this node's rows. ``ctx.get_data_feed()`` returns it.

    Examples
    --------
    >>> feed = ctx.get_data_feed()                                  # doctest: +SKIP
    >>> while not feed.should_stop():                               # doctest: +SKIP
    ...     batch = feed.next_batch(64)
    """

    __module__ = "tfos_ml"

    def __init__(
        self,
        inbox: Inbox,
        channel: Channel,
        schema: FeedSchema,
        epochs: int,
        train_mode: bool,
        directory: str,
        pad_value: float,
    ):
        self._inbox = inbox
        self._channel = channel
        self._schema = schema
        self._epochs = epochs
        self._train_mode = train_mode
        self._results_path = Path(directory) / "results.arrow"
        self._pad_value = pad_value
        self._batches = self._read()
        self._batch: pa.RecordBatch | None = None
        self._position = 0
        self._terminated = False
        self._unanswered: list[Array] = []
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Read the batches of all epochs; a chunk is released after it has been read for the last time."""
        kept: list[Chunk] = []
        while (chunk := self._inbox.next_chunk("train")) is not None:
            yield from read_chunk(chunk.path)
            if self._epochs > 1:
                kept.append(chunk)
            else:
                self._channel.send(ChunkReleased(chunk.path))
        yield from self._replay(kept, self._epochs)

    def _replay(self, kept: list[Chunk], epochs: int) -> Iterator[pa.RecordBatch]:
        """Repeat the rows of some chunks for each further epoch; without end if `epochs` is 0."""
        more: Iterable[int] = range(1, epochs) if epochs else count() if kept else ()
        for epoch in more:
            for chunk in kept:
                yield from read_chunk(chunk.path)
                if epochs and epoch == epochs - 1:
                    self._channel.send(ChunkReleased(chunk.path))

    def _available(self) -> bool:
        """Make sure that the current batch has rows left; False at the end of the feed."""
        while self._batch is None or self._position == len(self._batch):
            self._batch, self._position = next(self._batches, None), 0
            if self._batch is None:
                return False
        return True

    def _has_more(self, have_some: bool) -> bool:
        """Whether to add more rows to a batch, which may already have some."""
        return self._available()

    def _take(self, wanted: int) -> list[pa.RecordBatch]:
        """The next rows as slices of batches."""
        slices: list[pa.RecordBatch] = []
        while wanted and not self._terminated and self._has_more(bool(slices)):
            assert self._batch is not None
            part = self._batch.slice(self._position, wanted)
            self._position += len(part)
            wanted -= len(part)
            slices.append(part)
            self._note_taken(len(part))
        return slices

    def _note_taken(self, rows: int) -> None:
        """Called with the number of rows taken from the current chunk."""

    def should_stop(self) -> bool:
        """Whether there are no more rows. Waits until this is known."""
        return self._terminated or not self._available()

    def next_batch(self, batch_size: int) -> list[tuple[Any, ...]] | dict[str, Array]:
        """The next `batch_size` rows; fewer at the end of the feed, and none after it.

        Parameters
        ----------
        batch_size : int
            Number of rows, at least 1. A batch can have rows of two epochs.

        Returns
        -------
        list of tuple, or dict of str to numpy.ndarray
            With ``inputMapping`` one array of shape ``(rows, ...)`` per column, by tensor name (labels by their own
            names). Otherwise a list of rows, each a tuple of features, label and weight: Python scalars and NumPy
            arrays.

        Raises
        ------
        FeedTimeoutError
            If no row comes for ``feedTimeout`` seconds.
        """
        slices = self._take(batch_size)
        if not self._train_mode:
            self._unanswered.extend(s.column(ROW_COLUMN).to_numpy() for s in slices)
        return self._as_arrays(slices) if self._schema.named_features else self._as_rows(slices)

    def _as_arrays(self, slices: Sequence[pa.RecordBatch]) -> dict[str, Array]:
        arrays = {}
        for i, spec in enumerate(self._schema.columns):
            parts = [to_numpy(s.column(i), spec, self._pad_value) for s in slices]
            arrays[spec.name] = _own(concat_padded(parts, spec, self._pad_value)) if parts else np.empty(0)
        return arrays

    def _as_rows(self, slices: Sequence[pa.RecordBatch]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for part in slices:
            columns = [self._row_values(part.column(i), i) for i in range(len(self._schema.columns))]
            rows.extend(zip(*columns, strict=True))
        return rows

    def _row_values(self, array: pa.Array, column: int) -> Sequence[Any]:
        spec = self._schema.columns[column]
        if spec.ndim == 0:
            values: list[Any] = array.to_pylist()
            return values
        return [_own(to_numpy(array.slice(i, 1), spec, self._pad_value)[0]) for i in range(len(array))]

    def batch_results(self, results: Sequence[Any]) -> None:
        """Return the results of rows that were read, one per row, in the order of reading.

        ``TFModel.results()`` returns them after ``fit``, in the order of the DataFrame.

        Raises
        ------
        CollectiveCallError
            If the feed was made for training.
        ShapeError
            If there are more results than rows that were read and not answered.
        """
        waiting = np.concatenate(self._unanswered) if self._unanswered else np.zeros(0, dtype=np.int64)
        self._check_results(results, len(waiting))
        if not len(results):
            return
        answered = pa.array(waiting[: len(results)])
        self._unanswered = [waiting[len(results) :]]
        batch = pa.RecordBatch.from_arrays([answered, _to_arrow(results)], [ROW_COLUMN, RESULT_COLUMN])
        if self._writer is None:
            self._writer = pa.ipc.new_file(str(self._results_path), batch.schema)
        self._writer.write_batch(batch)

    def _check_results(self, results: Sequence[Any], waiting: int) -> None:
        """Raise as :meth:`batch_results` does; `waiting` is the number of rows read and not answered."""
        if self._train_mode:
            raise CollectiveCallError("batch_results() needs ctx.get_data_feed(train_mode=False)")
        if len(results) > waiting:
            raise ShapeError(f"batch_results() got {len(results)} results, but {waiting} rows wait for one")

    def close(self) -> None:
        """Send the results to the supervisor; called when the train function has returned.

        Raises
        ------
        ShapeError
            If rows were read with ``train_mode=False`` and not answered.
        """
        self._check_answered(sum(map(len, self._unanswered)))
        if self._writer is not None:
            self._writer.close()
            self._channel.send(Results(str(self._results_path)))

    def _check_answered(self, waiting: int) -> None:
        if waiting and not self._terminated:
            raise ShapeError(f"{waiting} rows were read with train_mode=False but not answered by batch_results()")

    def terminate(self) -> None:
        """Stop reading. The other rows are dropped when they arrive."""
        self._terminated = True
        self._channel.send(Reading("terminated", keeps_rows=False))


def _own(values: Array) -> Array:
    """The array, or a copy if it is a view of mapped memory, into which neither programs nor TensorFlow can write."""
    return np.require(values, requirements="W")


def _to_arrow(results: Sequence[Any]) -> pa.Array:
    rows = [r.tolist() if isinstance(r, np.ndarray) else r for r in results]
    return pa.array(rows)
