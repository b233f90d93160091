"""The frames of a TFRecord file: length, checksum of the length, data, checksum of the data.

Integers are little-endian. The length has 8 bytes. A checksum has 4 bytes: CRC32C, masked as TensorFlow does, because
the CRC of data that contains CRCs is weak.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = np.ndarray[Any, Any]

HEADER, FOOTER = 12, 4
_LENGTH, _FOOTER = struct.Struct("<Q"), "<I"
_MASK_DELTA = np.uint32(0xA282EAD8)


@dataclass(frozen=True)
class Frames:
    """The complete records at the beginning of a buffer."""

    start: Array  # of each record's data; int64
    end: Array
    consumed: int  # bytes of the records, frames included
    broken: bool  # whether the next length is damaged, so that no later record can be found


def masked(crc: Array) -> Array:
    """Masked checksums, as files have them, uint32."""
    crc = crc.astype(np.uint32)
    with np.errstate(over="ignore"):
        return (crc >> np.uint32(15) | crc << np.uint32(17)) + _MASK_DELTA


def checksums(parts: Sequence[bytes]) -> Array:
    """The masked checksum of each part."""
    return masked(np.fromiter(map(google_crc32c.value, parts), np.uint32, len(parts)))


def find_frames(data: Array) -> Frames:
    """Find the records in a buffer, up to the first that is incomplete or has a damaged length."""
    view, size = data.data, len(data)
    begins: list[int] = []
    append, unpack, last = begins.append, _LENGTH.unpack_from, size - HEADER
    position, is_cut = 0, False
    while position <= last:
        (length,) = unpack(view, position)
        append(position)
        follower = position + length + (HEADER + FOOTER)
        if follower > size:  # or its length is damaged
            is_cut = True
            break
        position = follower
    at = np.array(begins, np.int64)
    right = _lengths_are_right(data, at)
    broken = not right.all()
    count = int(np.argmin(right)) if broken else len(at) - is_cut
    bounds = np.append(at, position)
    return Frames(at[:count] + HEADER, bounds[1 : count + 1] - FOOTER, int(bounds[count]), broken)


def _lengths_are_right(data: Array, at: Array) -> Array:
    raw = data[at[:, None] + np.arange(HEADER)]
    stored = raw[:, 8:].copy().view("<u4")[:, 0]
    lengths, place = np.unique(raw[:, :8].copy().view("<u8")[:, 0], return_inverse=True)
    return checksums([_LENGTH.pack(int(n)) for n in lengths])[place] == stored


def damaged(data: Array, frames: Frames) -> Array:
    """A mask of the records whose data differs from its checksum."""
    if not len(frames.start):
        return np.zeros(0, bool)
    raw = data[: frames.consumed].tobytes()
    parts = map(raw.__getitem__, map(slice, frames.start.tolist(), frames.end.tolist()))
    computed = masked(np.fromiter(map(google_crc32c.value, parts), np.uint32, len(frames.start)))
    stored = np.ndarray((len(raw) - 3,), "<u4", raw, 0, (1,))[frames.end]
    return computed != stored


def framed(records: pa.LargeBinaryArray) -> pa.Buffer:
    """The bytes of a file with these records; there must be no nulls."""
    lengths, place = np.unique(pc.binary_length(records).to_numpy(), return_inverse=True)
    packed = [_LENGTH.pack(int(n)) for n in lengths]
    headers = [n + crc.tobytes() for n, crc in zip(packed, checksums(packed), strict=True)]
    footers = checksums(records.to_pylist()).astype("<u4")
    joined = pc.binary_join_element_wise(
        pa.array(headers, pa.large_binary()).take(pa.array(place)),
        records,
        binary(footers, np.arange(len(footers) + 1) * footers.itemsize),
        pa.scalar(b"", pa.large_binary()),
    )
    bounds = np.frombuffer(joined.buffers()[1], np.int64)[joined.offset : joined.offset + len(joined) + 1]
    return joined.buffers()[2].slice(int(bounds[0]), int(bounds[-1] - bounds[0])) if len(joined) else pa.py_buffer(b"")


def binary(data: Array, offsets: Array) -> pa.LargeBinaryArray:
    """A binary array over `data`, split at `offsets`."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
