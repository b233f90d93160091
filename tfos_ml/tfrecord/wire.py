"""Parses Protocol Buffers' wire format, for all records of a batch at once.

A *span* is a part of the buffer, from a start to an end. The spans of many records are two int64 arrays. Functions step
through all spans together, so that each NumPy call works on as many values as there are records. Functions return a
mask of the spans that they cannot parse, because these are damaged or have an unusual encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, Any]

PADDING = 16
"""Zero bytes that follow the last span, so that eight bytes can be read from any position."""
_TOO_FEW = 16  # remaining spans below which a loop over single spans is faster
_STOPS, _BITS = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE, _SEVEN_BITS, _HIGH_BIT = np.uint64(1), np.uint64(0x7F), np.uint64(0x80)
_FOLDS = [  # of 7, 14 and 28 bits at a time
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]
_LONGEST = 10  # bytes of a varint
_BLOCK = 1 << 15  # values that fit into the processor's cache
_ENDLESS = 1 << 40  # a length larger than any buffer
LENGTH_DELIMITED = 2


@dataclass(frozen=True)
class Buffer:
    """Bytes, and for each position the integer of the eight bytes from there."""

    data: Array  # uint8, ends with ``PADDING`` zeros
    words: Array  # uint64, unaligned

    @classmethod
    def of(cls, data: Array) -> Buffer:
        """A buffer over padded bytes; makes no copy."""
        return cls(data, np.ndarray((len(data) - 7,), "<u8", data.data, 0, (1,)))


def select(mask: Array, *arrays: Array) -> tuple[Array, ...]:
    """The values of each array at which the mask is true."""
    return arrays if mask.all() else tuple(array[mask] for array in arrays)


def tag(field: int) -> int:
    """The tag byte of a length-delimited field whose number is below 16."""
    return field << 3 | LENGTH_DELIMITED


def field_at(buffer: Buffer, position: Array, end: Array, field: int) -> tuple[Array, Array, Array]:
    """Parse a length-delimited field with number `field` at each position; it must not extend beyond `end`.

    Returns the starts and ends of the contents, and a mask of the positions that have such a field. Elsewhere the
    content is empty and starts at the position, so that it is safe to parse further.
    """
    length, begin = lengths_at(buffer, position + 1)
    finish = begin + length
    is_there = (buffer.data[position] == tag(field)) & (finish <= end)
    if not is_there.all():
        begin, finish = np.where(is_there, begin, position), np.where(is_there, finish, position)
    return begin, finish, is_there


def lengths_at(buffer: Buffer, position: Array) -> tuple[Array, Array]:
    """Parse lengths; returns them and the positions after them. A varint that is too long gives ``_ENDLESS``."""
    first = buffer.data[position]
    if not len(first) or first.max() < 0x80:
        return first.astype(np.int64), position + 1
    value, size = _varints(buffer.words[position])
    return np.where(size == 0, _ENDLESS, value).astype(np.int64), position + np.maximum(size, 1)


def _varints(word: Array) -> tuple[Array, Array]:
    """Parse a varint at the beginning of each word; returns values, and sizes in bytes, 0 for more than eight."""
    stops = ~word & _STOPS
    lowest = stops & (~stops + _ONE)
    value = word & (lowest | (lowest - _ONE)) & _BITS
    for low, high, shift in _FOLDS:
        value = (value & low) | ((value & high) >> shift)
    size = (np.log2(lowest.astype(np.float64), where=lowest > 0, out=np.full(len(word), -1.0)) + 1).astype(
        np.int64
    ) // 8
    return value, size


def split(buffer: Buffer, start: Array, end: Array, field: int) -> tuple[Array, Array, Array, Array]:
    """Split spans that consist of one repeated length-delimited field.

    Returns for each item the index of its span, ascending, its start and its end; and a mask of the spans that consist
    of something else, for which no items are returned.
    """
    wrong = np.zeros(len(start), bool)
    empty = np.zeros(0, np.int64)
    rounds: list[tuple[Array, ...]] = [(empty, empty, empty)]
    active = np.flatnonzero(start < end)
    position = start[active]
    while len(active) > _TOO_FEW or (len(active) and len(rounds) == 1):
        begin, finish, is_there = field_at(buffer, position, end[active], field)
        wrong[active[~is_there]] = True
        active, begin, finish = select(is_there, active, begin, finish)
        rounds.append((active, begin, finish))
        active, position = select(finish < end[active], active, finish)
    for span, at in zip(active.tolist(), position.tolist(), strict=True):
        parts = _split_one(buffer.data, at, int(end[span]), tag(field))
        wrong[span] = parts is None
        begins, finishes = parts or ([], [])
        rounds.append((np.full(len(begins), span), np.array(begins, np.int64), np.array(finishes, np.int64)))
    if len(rounds) == 2 and not wrong.any():
        return (*rounds[1], wrong)  # type: ignore[return-value]
    spans, begins_of_all, ends_of_all = map(np.concatenate, zip(*rounds, strict=True))
    order = np.argsort(spans, kind="stable")
    order = order[~wrong[spans[order]]]
    return spans[order], begins_of_all[order], ends_of_all[order], wrong


def _split_one(data: Array, position: int, end: int, wanted: int) -> tuple[list[int], list[int]] | None:
    """Split the rest of one span; None if it consists of something else."""
    view = data.data
    begins, ends = [], []
    while position < end:
        if view[position] != wanted:
            return None
        length = shift = 0
        while True:
            position += 1
            byte = view[position]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 56 or position >= end:
                return None
        begins.append(position + 1)
        position += 1 + length
        ends.append(position)
    return (begins, ends) if position == end else None


def equals(buffer: Buffer, position: Array, expected: bytes) -> Array:
    """Whether the expected bytes are found at each position."""
    same = np.ones(len(position), bool)
    for i in range(0, len(expected), 8):
        part = expected[i : i + 8]
        mask = np.uint64((1 << 8 * len(part)) - 1)
        same &= (buffer.words[position + i] & mask) == np.uint64(int.from_bytes(part, "little"))
    return same


def gather(buffer: Buffer, start: Array, end: Array) -> tuple[Array, Array]:
    """The concatenated bytes of spans, uint8, and their offsets, shape ``(spans + 1,)``."""
    offsets = np.concatenate([[0], np.cumsum(end - start)])
    if not offsets[-1]:
        return np.zeros(0, np.uint8), offsets
    taken = _as_binary(buffer, start, end)
    first = np.frombuffer(taken.buffers()[1], np.int64)[taken.offset]
    return np.frombuffer(taken.buffers()[2], np.uint8)[first : first + offsets[-1]], offsets


def _as_binary(buffer: Buffer, start: Array, end: Array) -> pa.LargeBinaryArray:
    """Spans as an Arrow array, which is faster than NumPy; the gaps between spans are every second value."""
    bounds = np.empty(2 * len(start) + 1, np.int64)
    bounds[0:-1:2], bounds[1::2], bounds[-1] = start, end, end[-1]
    if len(start) > 1 and not (start[1:] >= end[:-1]).all():
        order = np.argsort(start, kind="stable")
        sorted_values = _as_binary(buffer, start[order], end[order])
        return sorted_values.take(pa.array(np.argsort(order)))
    everything = pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer.data)]
    )
    return everything.take(pa.array(np.arange(0, len(bounds) - 1, 2)))


def padded(data: Array) -> Array:
    """A copy of bytes with ``PADDING`` zeros at the end."""
    buffer = np.zeros(len(data) + PADDING, np.uint8)
    buffer[: len(data)] = data
    return buffer


def integers(data: Array, offsets: Array) -> tuple[Array, Array, Array]:
    """Parse segments of packed varints; returns int64 values, the offset of each segment, and a mask of damaged ones.

    A damaged segment has any number of values, without a meaning.
    """
    is_last = data < 0x80
    last = np.flatnonzero(is_last)
    if len(last) == len(data):
        return data.astype(np.int64), offsets, np.zeros(len(offsets) - 1, bool)
    bounds = np.searchsorted(last, offsets)
    ends = offsets[1:]
    wrong = (ends > offsets[:-1]) & ~is_last[np.maximum(ends - 1, 0)]
    values, is_too_long = np.empty(len(last), np.int64), False
    for first in range(0, len(last), _BLOCK):
        block = last[first : first + _BLOCK]
        begin = int(last[first - 1]) + 1 if first else 0
        decoded, longest = _block_of_integers(data[begin : block[-1] + 1], block - begin)
        values[first : first + len(block)] = decoded
        is_too_long |= longest > _LONGEST
    if is_too_long:
        too_long = np.diff(last, prepend=-1) > _LONGEST
        wrong |= np.diff(np.concatenate([[0], np.cumsum(too_long)])[bounds]) > 0
    return values, bounds, wrong


def _block_of_integers(data: Array, last: Array) -> tuple[Array, int]:
    """Parse varints that end at the positions `last`; returns the values, and the size of the longest in bytes.

    Each byte is shifted to its place in its value. The values are differences of the cumulative sum of all shifted
    bytes. The sum may overflow, which does not change the differences.
    """
    goes_on = data >= 0x80
    shift = np.zeros(len(data), np.uint8)
    within, longest = goes_on[:-1], 1
    while longest <= _LONGEST and within.any():
        shift[longest:] += within
        within = within[1:] & goes_on[: len(within) - 1]
        longest += 1
    word = np.uint32 if longest <= 4 else np.uint64
    shift *= 7
    sums = np.cumsum((data & 0x7F).astype(word) << shift.astype(word), dtype=word)[last]
    sums[1:] -= sums[:-1].copy()
    return sums.astype(np.int64), longest


def single_integers(buffer: Buffer, start: Array, end: Array) -> Array | None:
    """The varint in each span, int64; None if a span is not one varint of at most eight bytes."""
    size = end - start
    if len(size) and size.max() == size.min() == 1:
        values = buffer.data[start]
        return values.astype(np.int64) if values.max() < 0x80 else None
    value, encoded_size = _varints(buffer.words[start])
    return value.view(np.int64) if (encoded_size == size).all() else None


def floats_at(buffer: Buffer, position: Array) -> Array:
    """The float32 at each position."""
    data = buffer.data
    return np.ndarray((len(data) - 3,), "<f4", data.data, 0, (1,))[position]
