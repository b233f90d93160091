"""Arrow columns -> serialized Examples and SequenceExamples, all rows of a batch at once.

For each column, a message has a prefix and the bytes of the values. The prefix depends only on the length of the
values, so it is computed once for each length. Arrow joins prefixes and values of all columns in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.data.arrow import to_storage
from tfos_ml.errors import NullValueError
from tfos_ml.tfrecord.feature_types import BYTES, FLOAT, SEQUENCE, Column, is_text
from tfos_ml.tfrecord.varints import packed, varint
from tfos_ml.tfrecord.wire import Array, tag

_NOTHING = pa.scalar(b"", pa.large_binary())
_ITEM, _KEY, _VALUE = bytes([tag(1)]), bytes([tag(1)]), bytes([tag(2)])
_CONTEXT, _FEATURE_LISTS = bytes([tag(1)]), bytes([tag(2)])


@dataclass(frozen=True)
class Parts:
    """The parts of each row's message: arrays, or scalars for all rows, to be joined."""

    arrays: list[pa.LargeBinaryArray | pa.Scalar]
    lengths: Array  # of each row's parts together, in bytes; int64, -1 for null

    def after(self, prefix: Callable[[int], bytes], null: bytes | None = None) -> Parts:
        """Put a prefix, which depends on the length, before each row; replace null by `null` if that is given."""
        known, places = _distinct(self.lengths)
        texts = [null if n < 0 else prefix(n) for n in known.tolist()]
        added = np.array([-1 if text is None else len(text) for text in texts], np.int64)[places]
        before = pa.array(texts, pa.large_binary())
        before = before[0] if len(texts) == 1 else before.take(pa.array(places))
        return Parts([before, *self.arrays], np.where(added < 0, -1, added + np.maximum(self.lengths, 0)))

    def joined(self) -> pa.LargeBinaryArray:
        """Join the parts of each row; null becomes empty bytes."""
        return pc.binary_join_element_wise(*self.arrays, _NOTHING, null_handling="replace", null_replacement="")


def _distinct(lengths: Array) -> tuple[Array, Array]:
    """The unique lengths in ascending order, and the index of each length among them."""
    if not len(lengths) or lengths.max() >= 1 << 16:
        return np.unique(lengths, return_inverse=True)
    known = np.flatnonzero(np.bincount(lengths + 1))
    place = np.zeros(int(known[-1]) + 1, np.int64)
    place[known] = np.arange(len(known))
    return known - 1, place[lengths + 1]


def encode(arrays: Sequence[pa.Array], columns: Sequence[Column], record_type: str) -> pa.LargeBinaryArray:
    """Encode one message per row; doubles are rounded to float32. Raises ``NullValueError`` for a null in an array."""
    count = len(arrays[0]) if arrays else 0
    if not count:
        return pa.array([], pa.large_binary())
    pairs = list(zip(arrays, columns, strict=True))
    entries = [_feature(a, c, c.ndim, _entry(c)) for a, c in pairs if c.ndim < 2]
    message = _all_of(entries, count).after(_layers(_CONTEXT))
    lists = [_feature_list(array, column) for array, column in pairs if column.ndim == 2]
    if record_type == SEQUENCE and lists:
        message = _all_of([message, _all_of(lists, count).after(_layers(_FEATURE_LISTS))], count)
    return message.joined()


def _all_of(parts: Sequence[Parts], count: int) -> Parts:
    """Concatenate parts for each row; null becomes empty bytes."""
    lengths = np.zeros(count, np.int64)
    for part in parts:
        lengths += np.maximum(part.lengths, 0)
    return Parts([array for part in parts for array in part.arrays], lengths)


def _layers(*befores: bytes) -> Callable[[int], bytes]:
    """A function from the length of a value to the prefixes of the nested messages around it, outermost first."""

    def prefix(length: int) -> bytes:
        encoded = b""
        for before in reversed(befores):
            encoded = before + varint(length + len(encoded)) + encoded
        return encoded

    return prefix


def _entry(column: Column) -> tuple[bytes, bytes]:
    """The layers of the map entry that holds a column."""
    return _ITEM, _KEY + varint(len(column.key)) + column.key + _VALUE


def _feature_list(array: pa.Array, column: Column) -> Parts:
    """Entries of FeatureLists, from arrays of arrays; a null array becomes a feature without a list."""
    values, bounds = _items(array)
    items = _feature(values, column, 1, (_ITEM,), null=_ITEM + varint(0))
    return _sliced(items, bounds, array).after(_layers(*_entry(column)))


def _feature(array: pa.Array, column: Column, ndim: int, layers: Sequence[bytes], null: bytes | None = None) -> Parts:
    """Serialized Features with their lists, within `layers`; null rows stay null, or become `null` if that is given."""
    if column.is_vector:
        array = to_storage(array)
    if ndim:
        values, bounds = _items(array)
        if values.null_count:
            raise _null_within(array, values, bounds, column)
        rows = array
    else:
        rows, values = array, array.drop_null()
        is_valid = array.is_valid().to_numpy(zero_copy_only=False)
        bounds = np.concatenate([[0], np.cumsum(is_valid)]) if array.null_count else np.arange(len(array) + 1)
    list_type = column.lists[0]
    in_feature = (*layers, bytes([list_type]))
    in_list = _layers(*in_feature, _ITEM)
    if list_type == BYTES:
        if not ndim:
            return _texts(rows).after(in_list, null)
        return _sliced(_texts(values).after(_layers(_ITEM)), bounds, rows).after(_layers(*in_feature), null)
    without_values = _layers(*in_feature)(0)  # an empty array becomes a feature with an empty list
    pack = _packed_floats if list_type == FLOAT else _packed_integers
    return pack(values, bounds, rows).after(lambda n: in_list(n) if n else without_values, null)


def _items(array: pa.Array) -> tuple[pa.Array, Array]:
    """The items of all arrays, and the offset of each array; null arrays have no items."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return array.flatten(), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _null_within(array: pa.Array, values: pa.Array, bounds: Array, column: Column) -> NullValueError:
    first = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
    row = int(np.searchsorted(bounds, first, side="right")) - 1
    return NullValueError(
        f"Column '{column.name}' has an array that contains a null, which a feature cannot hold: "
        f"{str(array[row].as_py())[:100]}. Drop such nulls (pyspark.sql.functions.array_compact), or fill them "
        f"(transform('{column.name}', lambda x: coalesce(x, lit(0))))."
    )


def _texts(values: pa.Array) -> Parts:
    if not is_text(values.type):  # decimals
        values = pc.cast(values, pa.string())
    values = values.cast(pa.large_binary())
    return Parts([values], pc.fill_null(pc.binary_length(values), -1).to_numpy())


def _packed_floats(values: pa.Array, bounds: Array, rows: pa.Array) -> Parts:
    with np.errstate(over="ignore"):
        floats = values.to_numpy(zero_copy_only=False).astype("<f4", copy=False)
    return _cut(np.ascontiguousarray(floats).view(np.uint8), bounds * 4, rows)


def _packed_integers(values: pa.Array, bounds: Array, rows: pa.Array) -> Parts:
    data, sizes = packed(values.to_numpy(zero_copy_only=False).astype(np.int64))
    of_rows = np.zeros(len(bounds), np.int64)
    is_used = bounds[:-1] < bounds[1:]
    if len(sizes) == np.count_nonzero(is_used):  # one value a row
        of_rows[1:][is_used] = sizes
    else:
        of_rows[1:][is_used] = np.add.reduceat(sizes, bounds[:-1][is_used], dtype=np.int64)
    return _cut(data, np.cumsum(of_rows), rows)


def _sliced(items: Parts, bounds: Array, rows: pa.Array) -> Parts:
    """Join the items of each row to one value."""
    if not len(items.lengths):
        return _cut(np.zeros(0, np.uint8), np.zeros(len(bounds), np.int64), rows)
    joined = items.joined()
    offsets = np.frombuffer(joined.buffers()[1], np.int64)[joined.offset : joined.offset + len(joined) + 1]
    return _cut(np.frombuffer(joined.buffers()[2] or b"", np.uint8), offsets[bounds], rows)


def _cut(data: Array, offsets: Array, rows: pa.Array) -> Parts:
    """Bytes split at offsets; null where `rows` is null."""
    lengths = np.diff(offsets)
    valid = None
    if rows.null_count:
        is_valid = rows.is_valid().to_numpy(zero_copy_only=False)
        valid = pa.array(is_valid, pa.bool_()).buffers()[1]
        lengths = np.where(is_valid, lengths, -1)
    buffers = [valid, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
    return Parts([pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)], lengths)
