"""Encodes integers as varints of Protocol Buffers' wire format, all integers of a column at once.

A varint has seven bits of the number in each byte. The high bit of a byte says that another byte follows. Each number
is spread over the bytes of a word; then the unused bytes are removed.
"""

from __future__ import annotations

import numpy as np

from tfos_ml.tfrecord.wire import Array

_BLOCK = 1 << 15  # numbers that fit into the processor's cache
_SHORT, _LONG = 4, 8  # bytes of a word
_SHIFTS = {28: 4, 14: 2, 7: 1}  # by which the upper half of twice as many bits moves
_PATTERNS = {28: 0x000000000FFFFFFF, 14: 0x00003FFF00003FFF, 7: 0x007F007F007F007F}  # of the lower halves
_MASKS = {
    kind: {bits: kind(pattern & np.iinfo(kind).max) for bits, pattern in _PATTERNS.items()}
    for kind in (np.uint32, np.uint64)
}
_ONES = {kind: kind(0x0101010101010101 & np.iinfo(kind).max) for kind in _MASKS}  # in each byte


def varint(value: int) -> bytes:
    """The varint of one integer, which must not be negative."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def packed(numbers: Array) -> tuple[Array, Array]:
    """The concatenated varints of int64s, and the size of each in bytes; both are uint8."""
    values = numbers.view(np.uint64)
    if not len(values) or values.max() < 0x80:
        return values.astype(np.uint8), np.ones(len(values), np.uint8)
    longest = -(-int(values.max()).bit_length() // 7)
    sizes = np.empty(len(values), np.uint8)
    parts = []
    for first in range(0, len(values), _BLOCK):
        block = values[first : first + _BLOCK]
        if longest <= _LONG:
            words, used, size = _spread(block.astype(np.uint32 if longest <= _SHORT else np.uint64))
        else:
            words, used, size = _in_pairs(block)
        sizes[first : first + len(block)] = size
        parts.append(words.reshape(-1).view(np.uint8).compress(used.reshape(-1).view(bool)))
    return np.concatenate(parts), sizes


def _spread(values: Array) -> tuple[Array, Array, Array]:
    """Varints in words of 4 bytes for numbers of at most 28 bits, or of 8 bytes for 56; overwrites `values`.

    Returns the words, words with a one in each used byte, and the sizes of the varints.
    """
    word = values.dtype.type
    is_long = word is np.uint64
    for bits in (28, 14, 7) if is_long else (14, 7):
        mask = _MASKS[word][bits]
        low = values & mask
        values &= ~mask
        values <<= word(_SHIFTS[bits])
        values |= low
    follow = values >> word(8)  # in each byte: all bits of the higher bytes
    for shift in (8, 16, 32) if is_long else (8, 16):
        follow |= follow >> word(shift)
    follow += word(0x7F) * _ONES[word]
    follow &= word(0x80) * _ONES[word]
    values |= follow
    used = (follow << word(1)) | word(1)
    return values, used, (used * _ONES[word]) >> word(56 if is_long else 24)


def _in_pairs(values: Array) -> tuple[Array, Array, Array]:
    """The same for numbers of any size, in two words of 8 bytes."""
    low, low_used, low_size = _spread(values & np.uint64((1 << 56) - 1))
    high, high_used, high_size = _spread(values >> np.uint64(56))
    is_long = (high > 0).astype(np.uint64)
    all_used = is_long * _ONES[np.uint64]
    words = np.stack([low | all_used << np.uint64(7), high], 1)
    used = np.stack([low_used | all_used, high_used * is_long], 1)
    return words, used, np.where(is_long, np.uint64(_LONG) + high_size, low_size)
