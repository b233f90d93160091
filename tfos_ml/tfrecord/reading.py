"""A file of TFRecords -> Arrow record batches."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.errors import CorruptRecordError, DataError
from tfos_ml.tfrecord.decoding import decode
from tfos_ml.tfrecord.feature_types import BYTE_ARRAY, Column
from tfos_ml.tfrecord.files import DataFile, storage_errors
from tfos_ml.tfrecord.framing import FOOTER, HEADER, Frames, damaged, find_frames
from tfos_ml.tfrecord.options import DROPMALFORMED, FAILFAST, GZIP, PERMISSIVE, PLAIN, ZLIB, Options
from tfos_ml.tfrecord.wire import PADDING, Array, Buffer, gather

CHUNK_BYTES = 4 << 20
"""Bytes of a file that are decoded at once."""
_SHOWN_REST = 1 << 20  # bytes kept of what follows a damaged length
_READ_BYTES = 1 << 20
_EITHER = 47  # window bits by which zlib takes its own format and gzip's
_log = logging.getLogger("tfos_ml.tfrecord")


@dataclass(frozen=True)
class Chunk:
    """Some bytes of a file, and the whole records at their beginning."""

    data: Array  # uint8, with ``PADDING`` bytes more than are the file's
    size: int
    offset: int  # of the first byte in the (uncompressed) file
    number: int  # of the first record in the file
    frames: Frames
    is_torn: bool = False  # whether the file ends within a record
    failure: str = ""  # why a compressed file cannot be read any further


def chunks(filesystem: fs.FileSystem, file: DataFile, codec: str | None, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """A file in parts of whole records; the last may have a rest that is none. The data is overwritten by the next."""
    with _opened(filesystem, file, codec) as stream:
        data = np.zeros(size + PADDING, np.uint8)
        filled = offset = number = 0
        at_end = False
        while True:
            while filled < len(data) - PADDING and not at_end:
                read = stream.readinto(memoryview(data)[filled : len(data) - PADDING])  # type: ignore[arg-type]
                filled += read
                at_end = not read
            frames = find_frames(data[:filled])
            rest = filled - frames.consumed
            is_last = frames.broken or at_end
            failure = stream.failure if isinstance(stream, _Inflated) else ""
            if len(frames.start) or is_last:
                is_torn = is_last and (rest > 0 or bool(failure))
                yield Chunk(data, filled, offset, number, frames, is_torn, failure if is_torn else "")
            if is_last:
                return
            offset += frames.consumed
            number += len(frames.start)
            needed = max(size, _needed(data[frames.consumed : filled]))
            grown = data if needed + PADDING <= len(data) else np.zeros(needed + PADDING, np.uint8)
            grown[:rest] = data[frames.consumed : filled].copy()
            data, filled = grown, rest


def _needed(rest: Array) -> int:
    """Bytes of the record that begins there, whose length, if it is known, is right."""
    return int(rest[:8].copy().view("<u8")[0]) + HEADER + FOOTER if len(rest) >= HEADER else 0


def _opened(filesystem: fs.FileSystem, file: DataFile, codec: str | None) -> pa.NativeFile | _Inflated:
    stream = filesystem.open_input_file(file.path)
    return stream if (codec or _codec_of(stream)) == PLAIN else _Inflated(stream)


class _Inflated:
    """A file of gzip's or zlib's format; all that stands before a damage is read, where Arrow's own gives nothing."""

    def __init__(self, stream: pa.NativeFile):
        self._stream = stream
        self._zlib = zlib.decompressobj(_EITHER)
        self._rest = b""
        self._is_within = False  # whether a part has begun and not ended
        self.failure = ""  # what is wrong with the rest

    def __enter__(self) -> _Inflated:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def readinto(self, view: memoryview) -> int:
        """Fill some of the view; 0 at the end, or where the file is damaged."""
        while not self.failure:
            given = self._rest or self._stream.read(_READ_BYTES)
            if not given:
                if self._is_within:
                    self.failure = "the compressed file ends too early"
                break
            try:
                decompressed = self._zlib.decompress(given, len(view))
            except zlib.error as error:
                self.failure = f"the file cannot be decompressed from there ({error})"
                break
            self._is_within = not self._zlib.eof
            self._rest = self._zlib.unconsumed_tail
            if self._zlib.eof:  # several may follow each other
                self._rest = self._zlib.unused_data
                self._zlib = zlib.decompressobj(_EITHER)
            if decompressed:
                view[: len(decompressed)] = decompressed
                return len(decompressed)
        return 0


def _codec_of(stream: pa.NativeFile) -> str:
    """How a file is compressed, by its first bytes."""
    head = stream.read(HEADER)
    stream.seek(0)
    if len(head) == HEADER and not find_frames(np.frombuffer(head, np.uint8)).broken:
        return PLAIN
    if head[:2] == b"\x1f\x8b":
        return GZIP
    is_zlib = len(head) > 1 and head[0] & 15 == 8 and int.from_bytes(head[:2], "big") % 31 == 0
    return ZLIB if is_zlib else PLAIN


def read(
    file: DataFile, schema: pa.Schema, columns: Sequence[Column], options: Options, constants: Mapping[str, pa.Scalar]
) -> Iterator[pa.RecordBatch]:
    """A file's records as batches of a schema, whose columns are `columns`, `constants` and that of corrupt records.

    Raises ``CorruptRecordError`` in mode ``FAILFAST`` if a record is damaged or does not fit the columns, and
    ``DataError`` if the store fails.
    """
    dropped = 0
    for chunk in chunks_of(file, options.codec):
        batch, lost = _batch(chunk, file, schema, columns, options, constants)
        dropped += lost
        if batch.num_rows:
            yield batch
    if dropped and options.mode == DROPMALFORMED:
        _log.warning("%s: %d corrupt records were dropped (mode=DROPMALFORMED)", file.shown, dropped)


def chunks_of(file: DataFile, codec: str | None, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """As :func:`chunks`; raises ``DataError`` if the store fails."""
    with storage_errors(file.root, DataError, f"read, from {file.shown}"):
        filesystem, _ = filesystems.open_uri(file.root)
        yield from chunks(filesystem, file, codec, size)


def _batch(
    chunk: Chunk,
    file: DataFile,
    schema: pa.Schema,
    columns: Sequence[Column],
    options: Options,
    constants: Mapping[str, pa.Scalar],
) -> tuple[pa.RecordBatch, int]:
    """The rows of a chunk, and how many records are missing from them."""
    frames = chunk.frames
    is_bad = damaged(chunk.data, frames)
    if options.mode == FAILFAST and is_bad.any():
        raise _error(chunk, int(np.argmax(is_bad)), "the checksum of its data is wrong", file)
    good = np.flatnonzero(~is_bad)
    arrays, problems = _columns(chunk, frames.start[good], frames.end[good], columns, options)
    if problems and options.mode == FAILFAST:
        row = min(problems)
        raise _error(chunk, int(good[row]), problems[row], file)
    if chunk.is_torn and options.mode == FAILFAST:
        raise _error(chunk, len(frames.start), _torn(chunk), file)
    count = len(frames.start)
    if problems:
        is_bad[good[sorted(problems)]] = True
    lost = int(is_bad.sum()) + chunk.is_torn
    if not lost:
        corrupt = pa.nulls(count, pa.binary())
        return _assembled(schema, columns, arrays, constants, corrupt, options, count), 0
    places = np.full(count, -1)
    places[good] = np.arange(len(good))
    places[is_bad] = -1
    if options.mode == DROPMALFORMED:
        places = places[places >= 0]
        corrupt = pa.nulls(len(places), pa.binary())
    else:
        corrupt = _corrupt(chunk, is_bad)
        places = np.append(places, -1) if chunk.is_torn else places
    taken = pa.array(places, mask=places < 0)
    arrays = [array.take(taken) for array in arrays]
    return _assembled(schema, columns, arrays, constants, corrupt, options, len(places)), lost


def _columns(
    chunk: Chunk, start: Array, end: Array, columns: Sequence[Column], options: Options
) -> tuple[list[pa.Array], dict[int, str]]:
    if options.record_type != BYTE_ARRAY:
        decoded = decode(chunk.data, start, end, columns, options.record_type)
        return decoded.columns, decoded.problems
    return [_bytes(chunk.data, start, end).cast(column.type) for column in columns], {}


def _bytes(data: Array, start: Array, end: Array) -> pa.LargeBinaryArray:
    content, offsets = gather(Buffer.of(data), start, end)
    return pa.Array.from_buffers(
        pa.large_binary(), len(start), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(content)]
    )


def _corrupt(chunk: Chunk, is_bad: Array) -> pa.BinaryArray:
    """The bytes of the records that cannot be read, null for the others."""
    frames = chunk.frames
    damaged = [
        chunk.data[frames.start[i] : frames.end[i]].tobytes() if bad else None for i, bad in enumerate(is_bad.tolist())
    ]
    if chunk.is_torn:
        damaged.append(chunk.data[frames.consumed : chunk.size][:_SHOWN_REST].tobytes())
    return pa.array(damaged, pa.binary())


def _assembled(
    schema: pa.Schema,
    columns: Sequence[Column],
    arrays: Sequence[pa.Array],
    constants: Mapping[str, pa.Scalar],
    corrupt: pa.Array,
    options: Options,
    count: int,
) -> pa.RecordBatch:
    by_name = {column.name: array for column, array in zip(columns, arrays, strict=True)}
    if options.mode == PERMISSIVE:
        by_name[options.corrupt_column] = corrupt
    for name, value in constants.items():
        by_name[name] = pa.repeat(value, count) if value.is_valid else pa.nulls(count, value.type)
    return pa.RecordBatch.from_arrays([by_name[name] for name in schema.names], schema=schema)


def _torn(chunk: Chunk) -> str:
    if chunk.failure:
        return chunk.failure
    if chunk.frames.broken:
        return "the checksum of its length is wrong, so that no record after it can be found"
    return f"the file ends within it, {chunk.size - chunk.frames.consumed} bytes after its beginning"


def _error(chunk: Chunk, row: int, reason: str, file: DataFile) -> CorruptRecordError:
    frames = chunk.frames
    at = int(frames.start[row]) - HEADER if row < len(frames.start) else frames.consumed
    offset = chunk.offset + at
    return CorruptRecordError(
        f"{file.shown}: record {chunk.number + row}, at byte {offset} of the (uncompressed) file: {reason}. Option "
        f"mode is '{FAILFAST}'; '{DROPMALFORMED}' leaves such records out, '{PERMISSIVE}' puts them into a column.",
        file.shown,
        offset,
    )
