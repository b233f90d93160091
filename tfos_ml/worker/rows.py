"""Rows in memory as a list of batches; makes NumPy arrays of any of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.data.arrow import concat_padded, to_numpy
from tfos_ml.data.row_order import Int64s
from tfos_ml.data.schema import Array, FeedSchema
from tfos_ml.data.vectors import dense

View: TypeAlias = Array | pa.Array
"""A column of a batch: an Arrow array for text, rows of several shapes and wide vectors, else a NumPy view."""


Part: TypeAlias = tuple[Sequence[View], Int64s]
"""Columns of a batch, and positions in it."""


class RowFormat:
    """The schema of rows, and the shape of one row of each column; None in a shape is a length that varies."""

    def __init__(self, schema: FeedSchema, shapes: list[tuple[int | None, ...]]):
        self.schema = schema
        self.shapes = shapes

    def is_ragged(self, column: int) -> bool:
        """Whether rows of a column differ in shape."""
        return None in self.shapes[column]

    @property
    def has_ragged(self) -> bool:
        """Whether rows of any column differ in shape."""
        return any(map(self.is_ragged, range(len(self.shapes))))

    @property
    def wide_bytes(self) -> int:
        """Bytes that the wide vectors of a row take in a batch, with all their zeros."""
        return sum(spec.width * np.dtype(spec.dtype).itemsize for spec in self.schema.columns if spec.is_wide)

    def views(self, batch: pa.RecordBatch) -> list[View]:
        """The columns of a batch, without row ids."""
        views: list[View] = []
        for i, spec in enumerate(self.schema.columns):
            array = batch.column(i)
            views.append(array if spec.is_text or spec.is_wide or self.is_ragged(i) else to_numpy(array, spec))
        return views


class Rows:
    """Some rows: `views` has the columns of each batch, `sizes` the rows of each."""

    def __init__(self, form: RowFormat, views: Sequence[Sequence[View]], sizes: Sequence[int]):
        self._format = form
        self._views = list(zip(*views, strict=True)) or [()] * len(form.schema.columns)
        self._starts = np.cumsum([0, *sizes])
        self._lengths: dict[int, Int64s] = {}

    @property
    def only_batch(self) -> list[View]:
        """The columns, if all rows are in one batch."""
        return [views[0] for views in self._views]

    def gather(self, rows: Int64s, pad_value: float) -> tuple[Array, ...]:
        """Copies of the rows at some positions, one array a column, each of shape ``(len(rows), ...)``."""
        if not len(rows):
            return tuple(map(self._no_rows, range(len(self._views))))
        picks = picks_of(rows, self._starts)
        return tuple(self._gather_column(i, picks, len(rows), pad_value) for i in range(len(self._views)))

    def lengths(self, column: int, rows: Int64s) -> Int64s:
        """Lengths of the arrays that a column holds in the rows at some positions, shape ``(len(rows),)``."""
        if column not in self._lengths:
            parts = [_lengths(view) for view in self._views[column]]
            self._lengths[column] = np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
        return self._lengths[column][rows]

    def _no_rows(self, column: int) -> Array:
        spec, shape = self._format.schema.columns[column], [d or 0 for d in self._format.shapes[column]]
        return np.empty((0, *shape), dtype=object if spec.is_text else spec.dtype)

    def _gather_column(
        self, column: int, picks: list[tuple[int, Int64s, Int64s]], rows: int, pad_value: float
    ) -> Array:
        """Rows of a column, always a copy: TensorFlow takes the memory for its own, and writes results into it.

        A write into a view of shared memory, which is mapped for reading, ends the process with SIGSEGV.
        """
        spec, views = self._format.schema.columns[column], self._views[column]
        if spec.is_wide:
            gathered = _empty((rows, spec.width), np.dtype(spec.dtype))
            for batch, group, wanted in picks:
                gathered[as_index(group)] = dense(views[batch], spec.width, as_index(wanted))
            return gathered
        if isinstance(views[0], np.ndarray):
            gathered = _empty((rows, *views[0].shape[1:]), views[0].dtype)
            for batch, group, wanted in picks:
                gathered[as_index(group)] = views[batch][as_index(wanted)]
            return gathered
        parts = [to_numpy(views[batch].take(pa.array(wanted)), spec, pad_value) for batch, _, wanted in picks]
        joined = concat_padded(parts, spec, pad_value)
        placed = np.empty_like(joined)
        placed[np.concatenate([group for _, group, _ in picks])] = joined
        return placed


def joined(form: RowFormat, rows: int, parts: Iterable[Part]) -> Rows:
    """Copy all parts, one after the other, to one batch in new memory; `rows` is the number of their rows."""
    columns: list[Any] = [[] for _ in form.schema.columns]
    done = 0
    for views, wanted in parts:
        for number, view in enumerate(views):
            if not isinstance(view, np.ndarray):
                columns[number].append(view.take(pa.array(wanted)))
                continue
            if not done:
                columns[number] = _empty((rows, *view.shape[1:]), view.dtype)
            columns[number][done : done + len(wanted)] = view[as_index(wanted)]
        done += len(wanted)
    if not done:
        return Rows(form, [], [])
    return Rows(form, [[c if isinstance(c, np.ndarray) else pa.concat_arrays(c) for c in columns]], [done])


def picks_of(rows: Int64s, starts: Int64s) -> list[tuple[int, Int64s, Int64s]]:
    """For each batch that has some of the rows: its number, the indices in `rows`, and the positions in the batch.

    `starts` has the position of each batch's first row, and the number of all rows.
    """
    if not len(rows):
        return []
    batch_of = np.searchsorted(starts, rows, side="right") - 1
    by_batch = np.argsort(batch_of, kind="stable")
    touched, firsts = np.unique(batch_of[by_batch], return_index=True)
    groups = zip(touched.tolist(), np.split(by_batch, firsts[1:]), strict=True)
    return [(batch, group, rows[group] - starts[batch]) for batch, group in groups]


def as_index(rows: Int64s) -> Int64s | slice:
    """Convert positions (at least one) to a slice if they are consecutive, which is faster."""
    first, last = int(rows[0]), int(rows[-1])
    is_run = last - first == len(rows) - 1 and (np.diff(rows) == 1).all()
    return slice(first, last + 1) if is_run else rows


def _lengths(view: View) -> Array:
    if isinstance(view, np.ndarray):
        return np.full(len(view), view.shape[1])
    lengths: Array = pc.list_value_length(view).to_numpy(zero_copy_only=False)
    return lengths


def _empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array in memory of Arrow's pool, whose alignment lets TensorFlow use it without a copy, unlike NumPy's."""
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(pa.allocate_buffer(size), np.uint8, size).view(dtype).reshape(shape)
