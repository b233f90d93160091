"""Arrow columns -> serialised Examples and SequenceExamples, all rows of a batch at once.

A message is joined by Arrow of its parts: for each column, what stands before the values (which depends on their
length alone, so that it is made once for each length), and the values as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.data.arrow import plain
from tfos_ml.errors import NullValueError
from tfos_ml.tfrecord.columns import BYTES, FLOAT, SEQUENCE, Column, is_text
from tfos_ml.tfrecord.wire import Array, tag

_BLOCK = 1 << 15  # integers that the processor's cache holds
_NOTHING = pa.scalar(b"", pa.large_binary())


def encode(
    arrays: Sequence[pa.Array], columns: Sequence[Column], record_type: str, *, exact_doubles: bool = False
) -> pa.LargeBinaryArray:
    """The messages that rows become.

    Doubles are rounded to float32, or written as bytes with `exact_doubles`. Raises ``NullValueError`` if there is a
    null within an array.
    """
    count = len(arrays[0]) if arrays else 0
    context = [
        _entry(column, _feature(array, column, column.ndim, exact_doubles))
        for array, column in zip(arrays, columns, strict=True)
        if column.ndim < 2
    ]
    message = _prefixed(_joined(context, count), lambda n: bytes([tag(1)]) + varint(n))
    lists = [
        _entry(column, _feature_list(array, column, exact_doubles))
        for array, column in zip(arrays, columns, strict=True)
        if column.ndim == 2
    ]
    if record_type == SEQUENCE and lists:
        of_lists = _prefixed(_joined(lists, count), lambda n: bytes([tag(2)]) + varint(n))
        message = _joined([message, of_lists], count)
    return message


def varint(value: int) -> bytes:
    """A whole number that is not negative, as the wire format has it."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _joined(parts: Sequence[pa.Array], count: int) -> pa.LargeBinaryArray:
    """Parts of each row one after another; null is nothing."""
    if not parts:
        return pa.array([b""] * count, pa.large_binary())
    return pc.binary_join_element_wise(*parts, _NOTHING, null_handling="replace", null_replacement="")


def _prefixed(payload: pa.LargeBinaryArray, prefix: Callable[[int], bytes]) -> pa.LargeBinaryArray:
    """Bytes after what depends on their length; null stays null."""
    lengths = pc.fill_null(pc.binary_length(payload), 0).to_numpy(zero_copy_only=False)
    if len(lengths) and lengths.max() < 1 << 16:
        known = np.flatnonzero(np.bincount(lengths))
        place = np.zeros(int(known[-1]) + 1, np.int64)
        place[known] = np.arange(len(known))
        places = place[lengths]
    else:
        known, places = np.unique(lengths, return_inverse=True)
    prefixes = pa.array([prefix(int(n)) for n in known], pa.large_binary())
    if len(known) == 1:
        return pc.binary_join_element_wise(prefixes[0], payload, _NOTHING)
    return pc.binary_join_element_wise(prefixes.take(pa.array(places)), payload, _NOTHING)


def _entry(column: Column, value: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Entries of a map, of the serialised values; null where there is none."""
    key = bytes([tag(1)]) + varint(len(column.key)) + column.key + bytes([tag(2)])

    def prefix(length: int) -> bytes:
        inner = key + varint(length)
        return bytes([tag(1)]) + varint(len(inner) + length) + inner

    return _prefixed(value, prefix)


def _feature_list(array: pa.Array, column: Column, exact_doubles: bool) -> pa.LargeBinaryArray:
    """FeatureLists of arrays of arrays; a null within is a feature without a list."""
    values, bounds = _items(array)
    features = _feature(values, column, 1, exact_doubles)
    features = pc.fill_null(features, b"")
    items = _prefixed(features, lambda n: bytes([tag(1)]) + varint(n))
    return _sliced(items, bounds, array)


def _feature(array: pa.Array, column: Column, ndim: int, exact_doubles: bool) -> pa.LargeBinaryArray:
    """Serialised Features, each with its list; null where a row is null."""
    if column.is_vector:
        array = plain(array)
    if ndim:
        values, bounds = _items(array)
        if values.null_count:
            raise _null_within(array, values, bounds, column)
        rows = array
    else:
        rows, values = array, array.drop_null()
        bounds = np.concatenate([[0], np.cumsum(array.is_valid().to_numpy(zero_copy_only=False))])
    kind = BYTES if exact_doubles and pa.types.is_float64(column.element) else column.lists[0]
    if kind == BYTES and pa.types.is_float64(column.element):
        lists = _prefixed(_double_bytes(values, bounds, rows), lambda n: bytes([tag(1)]) + varint(n))
    elif kind == BYTES:
        items = _prefixed(_as_bytes(values), lambda n: bytes([tag(1)]) + varint(n))
        lists = _sliced(items, bounds, rows)
    else:
        pack = _packed_floats if kind == FLOAT else _packed_integers
        packed, offsets = pack(values)
        payload = _large_binary(packed, offsets[bounds], rows)
        lists = _prefixed(payload, lambda n: bytes([tag(1)]) + varint(n) if n else b"")
    return _prefixed(lists, lambda n: bytes([kind]) + varint(n))


def _items(array: pa.Array) -> tuple[pa.Array, Array]:
    """The items of arrays, nulls without any, and where those of each begin."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return array.flatten(), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _null_within(array: pa.Array, values: pa.Array, bounds: Array, column: Column) -> NullValueError:
    first = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
    row = int(np.searchsorted(bounds, first, side="right")) - 1
    return NullValueError(
        f"Column '{column.name}' has an array with a null within, which a feature cannot hold: "
        f"{str(array[row].as_py())[:100]}. Drop such nulls (pyspark.sql.functions.array_compact), or fill them "
        f"(transform('{column.name}', lambda x: coalesce(x, lit(0))))."
    )


def _as_bytes(values: pa.Array) -> pa.LargeBinaryArray:
    if not is_text(values.type):  # decimals
        values = pc.cast(values, pa.string())
    return values.cast(pa.large_binary())


def _double_bytes(values: pa.Array, bounds: Array, rows: pa.Array) -> pa.LargeBinaryArray:
    """All values of a row as one value of bytes."""
    return _large_binary(values.to_numpy(zero_copy_only=False).astype("<f8").view(np.uint8), bounds * 8, rows)


def _packed_floats(values: pa.Array) -> tuple[Array, Array]:
    with np.errstate(over="ignore"):
        packed = values.to_numpy(zero_copy_only=False).astype("<f4", copy=False)
    return np.ascontiguousarray(packed).view(np.uint8), np.arange(len(values) + 1, dtype=np.int64) * 4


def _packed_integers(values: pa.Array) -> tuple[Array, Array]:
    """Varints, and where each begins."""
    numbers = values.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    if not len(numbers) or numbers.max() < 0x80:
        return numbers.astype(np.uint8), np.arange(len(numbers) + 1, dtype=np.int64)
    longest = -(-int(numbers.max()).bit_length() // 7)
    kind = np.uint32 if longest <= 4 else np.uint64
    sizes, packed = [], []
    for first in range(0, len(numbers), _BLOCK):
        block = numbers[first : first + _BLOCK].astype(kind)
        size = np.ones(len(block), np.int64)
        table = np.empty((len(block), longest), np.uint8)
        for k in range(longest):
            rest = block >> kind(7 * (k + 1))
            goes_on = rest > 0 if k < 9 else np.zeros(len(block), bool)
            table[:, k] = (block >> kind(7 * k)).astype(np.uint8) & 0x7F | goes_on.view(np.uint8) << np.uint8(7)
            size += goes_on
        sizes.append(size)
        packed.append(table[np.arange(longest) < size[:, None]])
    return np.concatenate(packed), np.concatenate([[0], *sizes]).cumsum()


def _sliced(items: pa.LargeBinaryArray, bounds: Array, rows: pa.Array) -> pa.LargeBinaryArray:
    """Those items that belong to one row as one value; they lie one after another."""
    if not len(items):
        return _large_binary(np.zeros(0, np.uint8), np.zeros(len(bounds), np.int64), rows)
    offsets = np.frombuffer(items.buffers()[1], np.int64)[items.offset : items.offset + len(items) + 1]
    return _large_binary(np.frombuffer(items.buffers()[2], np.uint8), offsets[bounds], rows)


def _large_binary(data: Array, offsets: Array, rows: pa.Array) -> pa.LargeBinaryArray:
    """Bytes as an array that is null where `rows` is."""
    valid = None
    if rows.null_count:
        valid = pa.array(rows.is_valid().to_numpy(zero_copy_only=False), pa.bool_()).buffers()[1]
    buffers = [valid, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
