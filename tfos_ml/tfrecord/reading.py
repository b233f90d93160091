"""Reads a TFRecord file as Arrow record batches."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tfos_ml.common import filesystems
from tfos_ml.errors import ColumnTypeError, CorruptRecordError, DataError
from tfos_ml.tfrecord.decoding import binary, decode
from tfos_ml.tfrecord.feature_types import BYTE_ARRAY, Column
from tfos_ml.tfrecord.files import DataFile, storage_errors
from tfos_ml.tfrecord.framing import FOOTER, HEADER, Frames, damaged, find_frames
from tfos_ml.tfrecord.options import DROPMALFORMED, FAILFAST, PERMISSIVE, PLAIN, Options
from tfos_ml.tfrecord.wire import PADDING, Array, Buffer, gather

CHUNK_BYTES = 4 << 20
"""Bytes of a file that are decoded at once."""
_SHOWN_REST = 1 << 20  # bytes kept after a damaged length
_READ_BYTES = 1 << 20
_ZLIB_OR_GZIP = 47  # window bits with which zlib reads both formats
_log = logging.getLogger("tfos_ml.tfrecord")


@dataclass(frozen=True)
class FileChunk:
    """A part of a file, and the complete records at its beginning."""

    data: Array  # uint8, ``PADDING`` bytes longer than `size`
    size: int
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
            yield FileChunk(data, filled, offset, number, frames, torn)
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

        Raises ``CorruptRecordError`` in mode ``FAILFAST`` if a record is damaged or does not fit the columns,
        ``DataError`` if the store fails, and ``ColumnTypeError`` if a value in the name of a directory does not fit
        its column.
        """
        constants = {k: self._constant(k, v) for k, v in self.file.partition if k in self.schema.names}
        dropped = 0
        for chunk in chunks(self.file, self.options.codec):
            by_name, rows, lost = self._columns(chunk)
            dropped += lost
            for name, value in constants.items():
                by_name[name] = pa.repeat(value, rows)
            if rows:
                yield pa.RecordBatch.from_arrays([by_name[name] for name in self.schema.names], schema=self.schema)
        if dropped and self.options.mode == DROPMALFORMED:
            _log.warning("%s: %d corrupt records were dropped (mode=DROPMALFORMED)", self.file.shown, dropped)

    def _constant(self, name: str, value: str | None) -> pa.Scalar:
        arrow_type = self.schema.field(name).type
        try:
            return pa.scalar(value, pa.string()).cast(arrow_type)
        except pa.ArrowException as error:
            raise ColumnTypeError(
                f"Column '{name}' is {arrow_type}, but the directory of {self.file.shown} has the value '{value}'. "
                "Pass a schema in which the column is a string."
            ) from error

    def _columns(self, chunk: FileChunk) -> tuple[dict[str, pa.Array], int, int]:
        """The columns of a chunk by name, the number of rows, and the number of records that cannot be read."""
        start, end = chunk.frames.start, chunk.frames.end
        is_bad = damaged(chunk.data, chunk.frames)
        good = np.flatnonzero(~is_bad)
        if self.options.record_type == BYTE_ARRAY:
            content, offsets = gather(Buffer.of(chunk.data), start[good], end[good])
            arrays, problems = [binary(content, offsets).cast(self.columns[0].type)], {}
        else:
            decoded = decode(chunk.data, start[good], end[good], self.columns, self.options.record_type)
            arrays, problems = decoded.columns, decoded.problems
        if self.options.mode == FAILFAST:
            self._check(chunk, is_bad, {int(good[row]): reason for row, reason in problems.items()})
        is_bad[good[sorted(problems)]] = True
        lost = int(is_bad.sum()) + bool(chunk.torn)
        rows = len(start)
        if lost:
            places = np.full(rows, -1)
            places[good] = np.arange(len(good))
            places[is_bad] = -1
            if self.options.mode == DROPMALFORMED:
                places = places[~is_bad]
            elif chunk.torn:
                places = np.append(places, -1)
            rows = len(places)
            arrays = [array.take(pa.array(places, mask=places < 0)) for array in arrays]
        by_name = dict(zip((column.name for column in self.columns), arrays, strict=True))
        for name in self.options.corrupt_columns:
            by_name[name] = _corrupt(chunk, is_bad) if lost else pa.nulls(rows, pa.binary())
        return by_name, rows, lost

    def _check(self, chunk: FileChunk, is_bad: Array, problems: dict[int, str]) -> None:
        """Raise ``CorruptRecordError`` for the first record that cannot be read."""
        frames = chunk.frames
        reasons = dict.fromkeys(np.flatnonzero(is_bad).tolist(), "the checksum of its data is wrong") | problems
        if chunk.torn:
            reasons[len(frames.start)] = chunk.torn
        if not reasons:
            return
        row = min(reasons)
        offset = chunk.offset + (int(frames.start[row]) - HEADER if row < len(frames.start) else frames.consumed)
        raise CorruptRecordError(
            f"{self.file.shown}: record {chunk.number + row}, at byte {offset} of the (uncompressed) file: "
            f"{reasons[row]}. Option mode is '{FAILFAST}'. Set it to '{DROPMALFORMED}' to drop such "
            f"records, or to '{PERMISSIVE}' to get them in a column.",
            self.file.shown,
            offset,
        )


def _corrupt(chunk: FileChunk, is_bad: Array) -> pa.BinaryArray:
    """The bytes of the records that cannot be read, null for the others."""
    spans = zip(chunk.frames.start.tolist(), chunk.frames.end.tolist(), is_bad.tolist(), strict=True)
    records = [chunk.data[start:end].tobytes() if bad else None for start, end, bad in spans]
    if chunk.torn:
        records.append(chunk.data[chunk.frames.consumed : chunk.size][:_SHOWN_REST].tobytes())
    return pa.array(records, pa.binary())
