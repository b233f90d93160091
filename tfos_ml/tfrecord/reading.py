"""Reads a TFRecord file as Arrow record batches."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tfos_ml.common import filesystems
from tfos_ml.errors import ColumnTypeError, CorruptRecordError, DataError
from tfos_ml.tfrecord.decoding import decode
from tfos_ml.tfrecord.feature_types import BYTE_ARRAY, Column
from tfos_ml.tfrecord.files import DataFile, storage_errors
from tfos_ml.tfrecord.framing import FOOTER, HEADER, Frames, binary, damaged, find_frames
from tfos_ml.tfrecord.options import PLAIN, Options
from tfos_ml.tfrecord.wire import PADDING, Array, Buffer, gather

CHUNK_BYTES = 4 << 20
"""Bytes of a file that are decoded at once."""
_READ_BYTES = 1 << 20
_ZLIB_OR_GZIP = 47  # window bits with which zlib reads both formats


@dataclass(frozen=True)
class FileChunk:
    """A part of a file, and the complete records at its beginning."""

    data: Array  # uint8, with at least ``PADDING`` bytes after the records
    offset: int  # of the first byte in the (uncompressed) file
    number: int  # of the first record in the file
    frames: Frames
    torn: str = ""  # why no record can be found after these; empty if the file goes on or ends as it should


def chunks(file: DataFile, codec: str | None, size: int = CHUNK_BYTES) -> Iterator[FileChunk]:
    """Read a file in chunks of complete records; raises ``DataError`` if reading fails.

    Each chunk overwrites the one before. A torn chunk is the last.
    """
    with storage_errors(file.root, DataError, f"read, from {file.shown}"):
        filesystem, _ = filesystems.open_uri(file.root)
        with filesystem.open_input_file(file.path) as raw:
            stream = raw if (codec or _codec_of(raw)) == PLAIN else _Inflated(raw)
            yield from _chunks(stream, size)


def _chunks(stream: pa.NativeFile | _Inflated, size: int) -> Iterator[FileChunk]:
    data = np.zeros(size + PADDING, np.uint8)
    filled = offset = number = 0
    at_end = False
    while True:
        while filled < len(data) - PADDING and not at_end:
            read = stream.readinto(memoryview(data)[filled : len(data) - PADDING])  # type: ignore[arg-type]
            filled += read
            at_end = not read
        frames = find_frames(data[:filled])
        is_last = frames.broken or at_end
        if len(frames.start) or is_last:
            torn = _torn(frames, filled - frames.consumed, stream) if is_last else ""
            yield FileChunk(data, offset, number, frames, torn)
        if is_last:
            return
        offset += frames.consumed
        number += len(frames.start)
        rest = data[frames.consumed : filled].copy()
        needed = max(size, _needed(rest)) + PADDING
        if needed > len(data):
            data = np.zeros(needed, np.uint8)
        filled = len(rest)
        data[:filled] = rest


def _torn(frames: Frames, rest: int, stream: pa.NativeFile | _Inflated) -> str:
    if isinstance(stream, _Inflated) and stream.failure:
        return stream.failure
    if frames.broken:
        return "the checksum of its length is wrong, so no later record can be found"
    return f"the file ends within it, after {rest} bytes" if rest else ""


def _needed(rest: Array) -> int:
    """The size of the incomplete record in `rest`, with its frame; 0 if `rest` does not include its length."""
    return int(rest[:8].view("<u8")[0]) + HEADER + FOOTER if len(rest) >= HEADER else 0


class _Inflated:
    """Decompresses gzip or zlib. Unlike Arrow's decompression, it returns all data before a damaged part."""

    def __init__(self, stream: pa.NativeFile):
        self._stream = stream
        self._zlib = zlib.decompressobj(_ZLIB_OR_GZIP)
        self._rest = b""
        self._is_within = False  # whether it is within a member of the file
        self.failure = ""  # why the rest cannot be read

    def readinto(self, view: memoryview) -> int:
        """Fill some of the view; returns 0 at the end or at a damaged part."""
        while not self.failure:
            compressed = self._rest or self._stream.read(_READ_BYTES)
            if not compressed:
                if self._is_within:
                    self.failure = "the compressed file ends too early"
                break
            try:
                data = self._zlib.decompress(compressed, len(view))
            except zlib.error as error:
                self.failure = f"the file cannot be decompressed beyond it ({error})"
                break
            self._is_within = not self._zlib.eof
            self._rest = self._zlib.unconsumed_tail
            if self._zlib.eof:  # another member may follow
                self._rest = self._zlib.unused_data
                self._zlib = zlib.decompressobj(_ZLIB_OR_GZIP)
            if data:
                view[: len(data)] = data
                return len(data)
        return 0


def _codec_of(stream: pa.NativeFile) -> str | None:
    """``PLAIN`` if the first bytes of a file are not compressed, else None."""
    head = stream.read(HEADER)
    stream.seek(0)
    if len(head) == HEADER and not find_frames(np.frombuffer(head, np.uint8)).broken:
        return PLAIN
    is_zlib = len(head) > 1 and head[0] & 15 == 8 and int.from_bytes(head[:2], "big") % 31 == 0
    return None if is_zlib or head[:2] == b"\x1f\x8b" else PLAIN


@dataclass(frozen=True)
class Reader:
    """Reads a file as record batches."""

    file: DataFile
    schema: pa.Schema  # of the batches
    columns: list[Column]  # those stored in records
    options: Options

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records of the file.

        Raises ``CorruptRecordError`` if a record is damaged or does not fit the columns, ``DataError`` if the store
        fails, and ``ColumnTypeError`` if a value in the name of a directory does not fit its column.
        """
        constants = {k: self._constant(k, v) for k, v in self.file.partition if k in self.schema.names}
        for chunk in chunks(self.file, self.options.codec):
            rows = len(chunk.frames.start)
            by_name = dict(zip((column.name for column in self.columns), self._columns(chunk), strict=True))
            by_name |= {name: pa.repeat(value, rows) for name, value in constants.items()}
            if rows:
                yield pa.RecordBatch.from_arrays([by_name[name] for name in self.schema.names], schema=self.schema)

    def _constant(self, name: str, value: str | None) -> pa.Scalar:
        arrow_type = self.schema.field(name).type
        try:
            return pa.scalar(value, pa.string()).cast(arrow_type)
        except pa.ArrowException as error:
            raise ColumnTypeError(
                f"Column '{name}' is {arrow_type}, but the directory of {self.file.shown} has the value '{value}'. "
                "Pass a schema in which the column is a string."
            ) from error

    def _columns(self, chunk: FileChunk) -> list[pa.Array]:
        """The columns of a chunk; raises ``CorruptRecordError`` for the first record that cannot be read."""
        start, end = chunk.frames.start, chunk.frames.end
        is_damaged = damaged(chunk.data, chunk.frames)
        problems = dict.fromkeys(np.flatnonzero(is_damaged).tolist(), "the checksum of its data is wrong")
        if chunk.torn:
            problems[len(start)] = chunk.torn
        if self.options.record_type == BYTE_ARRAY:
            arrays = [binary(*gather(Buffer.of(chunk.data), start, end)).cast(self.columns[0].type)]
        else:
            decoded = decode(chunk.data, start, end, self.columns, self.options.record_type)
            arrays, problems = decoded.columns, decoded.problems | problems
        if problems:
            raise self._corrupt(chunk, problems)
        return arrays

    def _corrupt(self, chunk: FileChunk, problems: dict[int, str]) -> CorruptRecordError:
        frames, row = chunk.frames, min(problems)
        offset = chunk.offset + (int(frames.start[row]) - HEADER if row < len(frames.start) else frames.consumed)
        return CorruptRecordError(
            f"{self.file.shown}: record {chunk.number + row}, at byte {offset} of the (uncompressed) file: "
            f"{problems[row]}. Write a damaged file again, or leave it out; for a whole one, pass a schema that fits.",
            self.file.shown,
            offset,
        )
