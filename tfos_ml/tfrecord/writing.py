"""Writes rows as TFRecord files: each task writes its own files, which :mod:`commit` moves into place."""

from __future__ import annotations

import contextlib
import posixpath
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.common import filesystems
from tfos_ml.errors import ColumnNotFoundError, ColumnTypeError, NullValueError
from tfos_ml.tfrecord.encoding import encode
from tfos_ml.tfrecord.feature_types import BYTE_ARRAY, Column, columns_of
from tfos_ml.tfrecord.files import TEMPORARY, partition_directory
from tfos_ml.tfrecord.framing import framed
from tfos_ml.tfrecord.options import GZIP, PLAIN, ZLIB, Options

_SUFFIXES = {GZIP: ".gz", ZLIB: ".deflate", PLAIN: ""}
_WINDOW_BITS = {GZIP: 31, ZLIB: 15}  # arguments of zlib
_MOST_OPEN = 64  # files, one for each partition, that a task keeps open
_ROWS_BYTES = 16 << 20  # bytes of a batch that are encoded at once


@dataclass(frozen=True)
class Destination:
    """Where and how a data set is written."""

    uri: str = field(repr=False)  # for ``filesystems.open_uri``, with credentials
    options: Options
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    overwrite: bool = False
    name: str = ""  # of files, with ``{}`` for the number of the task; by default like Spark's
    schema: dict[str, Any] | None = None  # content of the schema file; None for no such file

    def temporary(self, path: str) -> str:
        """The directory for files that are not committed yet."""
        return f"{path}/{TEMPORARY}/{self.job}"


@dataclass(frozen=True)
class Written:
    """The files of a task: pairs of a path below the temporary directory and a path below the destination."""

    files: tuple[tuple[str, str], ...]
    rows: int


def check_columns(schema: pa.Schema, options: Options) -> list[Column]:
    """The columns to store in records; raises an ``InvalidInputError`` if they cannot be written."""
    for name in options.partition_by:
        if name not in schema.names:
            raise ColumnNotFoundError(
                f"Column '{name}' of partitionBy does not exist. Columns: {', '.join(schema.names)}."
            )
        arrow_type = schema.field(name).type
        is_binary = arrow_type in (pa.binary(), pa.large_binary())
        if is_binary or pa.types.is_nested(arrow_type) or pa.types.is_floating(arrow_type):
            raise ColumnTypeError(
                f"Column '{name}' of partitionBy is {arrow_type}; expected an integer, string, boolean or date."
            )
    return columns_of(pa.schema([f for f in schema if f.name not in options.partition_by]), options.record_type)


def write_rows(batches: Iterable[pa.RecordBatch], destination: Destination, task: int) -> Written:
    """Write the rows of a task to temporary files; raises ``StorageError`` if the store fails."""
    rows = 0
    with filesystems.storage_errors(destination.uri):
        files = _TaskFiles(destination, task)
        try:
            for batch in batches:
                columns = check_columns(batch.schema, destination.options)
                for directory, part in _by_partition(batch, destination.options.partition_by):
                    for piece in _pieces(part):
                        files.write(directory, _records(piece, columns, destination.options))
                rows += batch.num_rows
            files.close()
        except BaseException:
            with contextlib.suppress(OSError):  # if the store is unreachable, the files stay
                files.abandon()
            raise
    return Written(tuple((f"{files.attempt}/{name}", name) for name in files.names), rows)


def _records(batch: pa.RecordBatch, columns: Sequence[Column], options: Options) -> pa.LargeBinaryArray:
    arrays = [batch.column(column.name) for column in columns]
    if options.record_type != BYTE_ARRAY:
        if not arrays:
            return pa.array([b""] * batch.num_rows, pa.large_binary())
        return encode(arrays, columns, options.record_type)
    if arrays[0].null_count:
        raise NullValueError(
            f"Column '{columns[0].name}' has a null, which cannot be a record. Drop (df.na.drop) or fill such rows."
        )
    return arrays[0].cast(pa.large_binary())


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts of limited size."""
    rows = max(1, int(_ROWS_BYTES / max(1, batch.nbytes) * batch.num_rows))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _by_partition(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split a batch by partition directory; keeps the order of rows within each."""
    if not names:
        yield "", batch
        return
    texts = [pc.cast(batch.column(name), pa.string()) for name in names]
    codes = [text.dictionary_encode(null_encoding="encode") for text in texts]
    keys = np.stack([code.indices.to_numpy(zero_copy_only=False) for code in codes])
    combinations, place = np.unique(keys, axis=1, return_inverse=True)
    for number, combination in enumerate(combinations.T.tolist()):
        values = [code.dictionary[i].as_py() for code, i in zip(codes, combination, strict=True)]
        rows = np.flatnonzero(place.reshape(-1) == number)
        yield partition_directory(names, values), batch.take(pa.array(rows))


class _TaskFiles:
    """The files of one attempt of a task: at most one open file for each partition."""

    def __init__(self, destination: Destination, task: int):
        self.attempt = uuid.uuid4().hex
        self.names: list[str] = []  # below the destination
        self._filesystem, path = filesystems.open_uri(destination.uri)
        self._directory = f"{destination.temporary(path)}/{self.attempt}"
        self._codec = destination.options.codec or PLAIN
        default = f"part-{task:05d}-{destination.job}-c{{:03d}}.tfrecord"
        self._name = destination.name.format(task) if destination.name else default
        self._open: dict[str, _File] = {}

    def write(self, partition: str, records: pa.LargeBinaryArray) -> None:
        """Append records to the file of a partition."""
        if partition not in self._open:
            if len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[partition] = self._begin(partition)
        self._open[partition].write(framed(records))

    def _begin(self, partition: str) -> _File:
        name = posixpath.join(partition, self._name.format(len(self.names)) + _SUFFIXES[self._codec])
        path = f"{self._directory}/{name}"
        self._filesystem.create_dir(posixpath.dirname(path), recursive=True)
        file = _File(self._filesystem.open_output_stream(path, compression=None), self._codec)
        self.names.append(name)
        return file

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def abandon(self) -> None:
        """Close and delete all files."""
        while self._open:
            self._open.popitem()[1].stream.close()
        if self.names:
            self._filesystem.delete_dir(self._directory)


class _File:
    """A file that is compressed while it is written."""

    def __init__(self, stream: pa.NativeFile, codec: str):
        self.stream = stream
        self._compressor = zlib.compressobj(wbits=_WINDOW_BITS[codec]) if codec != PLAIN else None

    def write(self, data: pa.Buffer) -> None:
        self.stream.write(self._compressor.compress(data) if self._compressor else data)

    def close(self) -> None:
        if self._compressor:
            self.stream.write(self._compressor.flush())
        self.stream.close()
