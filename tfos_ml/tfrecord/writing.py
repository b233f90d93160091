"""Rows -> files of TFRecords: each task writes files of its own, which appear when all tasks have ended."""

from __future__ import annotations

import contextlib
import json
import posixpath
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact
from tfos_ml.errors import ColumnNotFoundError, ColumnTypeError, DestinationError, NullValueError
from tfos_ml.tfrecord.encoding import encode
from tfos_ml.tfrecord.feature_types import BYTE_ARRAY, Column, columns_of
from tfos_ml.tfrecord.files import (
    COMMITTING,
    SCHEMA_FILE,
    SUCCESS,
    TEMPORARY,
    partition_directory,
    read_schema,
    storage_errors,
    unfinished,
)
from tfos_ml.tfrecord.framing import framed
from tfos_ml.tfrecord.options import GZIP, PLAIN, ZLIB, Options

ERROR, APPEND, OVERWRITE, IGNORE = "error", "append", "overwrite", "ignore"
_SUFFIXES = {GZIP: ".gz", ZLIB: ".deflate", PLAIN: ""}
_WINDOW_BITS = {GZIP: 31, ZLIB: 15}  # as zlib counts them
_MOST_OPEN = 64  # files of partitions that a task writes at once
_ROWS_BYTES = 16 << 20  # of a batch that are encoded at once


@dataclass(frozen=True)
class Destination:
    """Where and how a data set is written."""

    uri: str = field(repr=False)  # as ``filesystems.open_uri`` takes it, with credentials
    options: Options
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    overwrite: bool = False
    name: str = ""  # of files, with the task's number in braces; by default as Spark names them
    schema: dict[str, Any] | None = None  # for the file of the schema; None for no such file

    @property
    def codec(self) -> str:
        """How files are compressed."""
        return self.options.codec or PLAIN

    def temporary(self, path: str) -> str:
        """The directory for files that are not whole yet, in the filesystem."""
        return f"{path}/{TEMPORARY}/{self.job}"


@dataclass(frozen=True)
class Written:
    """What a task has written: files beside their place, and their place, below the directory."""

    files: tuple[tuple[str, str], ...]
    rows: int


def check_columns(schema: pa.Schema, options: Options) -> list[Column]:
    """The columns that records have; raises an ``InvalidInputError`` if they cannot be written."""
    for name in options.partition_by:
        if name not in schema.names:
            raise ColumnNotFoundError(
                f"There is no column '{name}' to partition by. Columns: {', '.join(schema.names)}."
            )
        arrow_type = schema.field(name).type
        if (
            pa.types.is_nested(arrow_type)
            or pa.types.is_floating(arrow_type)
            or pa.types.is_large_binary(arrow_type)
            or pa.types.is_binary(arrow_type)
        ):
            raise ColumnTypeError(
                f"Column '{name}', to partition by, is {arrow_type}; expected integers, text, booleans or dates."
            )
    rest = pa.schema([f for f in schema if f.name not in options.partition_by])
    if options.record_type != BYTE_ARRAY:
        return columns_of(rest, options.record_type)
    columns = columns_of(rest, options.record_type)
    if len(columns) != 1 or not (pa.types.is_binary(columns[0].type) or pa.types.is_large_binary(columns[0].type)):
        raise ColumnTypeError(
            f"With option recordType='{BYTE_ARRAY}' there must be one column of type binary, got: "
            f"{', '.join(rest.names)}."
        )
    return columns


def prepare(destination: Destination, mode: str) -> bool:
    """See on the driver whether a directory can be written to, and change nothing; False if it is to stay as it is.

    Raises ``DestinationError`` if it exists already, with mode ``error``, or holds other columns, with ``append``, or
    cannot be written.
    """
    with storage_errors(destination.uri, DestinationError, "written"):
        return _prepare(destination, mode)


def _prepare(destination: Destination, mode: str) -> bool:
    filesystem, path = filesystems.open_uri(destination.uri)
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.File:
        raise DestinationError(f"{redact(destination.uri)} is a file; expected a directory, or nothing.")
    there = info.type == fs.FileType.Directory and bool(filesystem.get_file_info(fs.FileSelector(path)))
    if there and mode == IGNORE:
        return False
    if there and mode == ERROR:
        raise DestinationError(
            f"{redact(destination.uri)} exists already. Choose a new directory for the TFRecords, or mode 'append' "
            "or 'overwrite'."
        )
    if there and mode == APPEND:
        _check_same(destination, read_schema(filesystem, path))
    filesystems.write_and_delete(filesystem, f"{path}/{TEMPORARY}/.preflight-{destination.job}")
    return True


def _check_same(destination: Destination, existing: dict[str, Any] | None) -> None:
    if (
        destination.schema is None
        or existing is None
        or _without_nullable(existing) == _without_nullable(destination.schema)
    ):
        return
    raise DestinationError(
        f"{redact(destination.uri)} holds other columns or records: {json.dumps(existing['schema'])[:500]} "
        f"({existing['recordType']}, partitioned by {existing['partitionBy']}), and the rows to be appended have "
        f"{json.dumps(destination.schema['schema'])[:500]}. Write them to another directory, or use mode 'overwrite'."
    )


def _without_nullable(value: Any) -> Any:
    """A schema as JSON, but for what may be null, which does not matter here."""
    if isinstance(value, dict):
        return {k: _without_nullable(v) for k, v in value.items() if k not in ("nullable", "containsNull", "metadata")}
    return [_without_nullable(v) for v in value] if isinstance(value, list) else value


def write_rows(batches: Iterable[pa.RecordBatch], destination: Destination, task: int) -> Written:
    """Write the rows of a task beside their place; raises ``StorageError`` if the store fails."""
    with filesystems.storage_errors(destination.uri):
        return _write_rows(batches, destination, task)


def _write_rows(batches: Iterable[pa.RecordBatch], destination: Destination, task: int) -> Written:
    filesystem, path = filesystems.open_uri(destination.uri)
    attempt = uuid.uuid4().hex
    files = _TaskFiles(filesystem, f"{destination.temporary(path)}/{attempt}", destination, task)
    rows = 0
    try:
        for batch in batches:
            columns = check_columns(batch.schema, destination.options)
            for directory, part in _by_partition(batch, destination.options.partition_by):
                for piece in _pieces(part):
                    files.write(directory, _records(piece, columns, destination.options))
            rows += batch.num_rows
        files.close()
    except BaseException:
        with contextlib.suppress(OSError):  # of a store that is gone; what is left is no one's
            files.abandon()
        raise
    return Written(tuple((f"{attempt}/{name}", name) for name in files.names), rows)


def _records(batch: pa.RecordBatch, columns: Sequence[Column], options: Options) -> pa.LargeBinaryArray:
    arrays = [batch.column(column.name) for column in columns]
    if options.record_type != BYTE_ARRAY:
        if not arrays:
            return pa.array([b""] * batch.num_rows, pa.large_binary())
        return encode(arrays, columns, options.record_type, exact_doubles=options.exact_doubles)
    if arrays[0].null_count:
        raise NullValueError(
            f"Column '{columns[0].name}' has a null, which is no record. Drop such rows (df.na.drop), or fill them."
        )
    return arrays[0].cast(pa.large_binary())


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts of limited size."""
    rows = max(1, int(_ROWS_BYTES / max(1, batch.nbytes) * batch.num_rows))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _by_partition(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A batch in parts for each directory, in which the order of rows is kept."""
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


@dataclass
class _TaskFiles:
    """The files of a task, one for each partition at a time."""

    filesystem: fs.FileSystem
    directory: str
    destination: Destination
    task: int
    names: list[str] = field(default_factory=list)
    open: dict[str, _File] = field(default_factory=dict)

    def write(self, partition: str, records: pa.LargeBinaryArray) -> None:
        """Append records to the file of a partition."""
        if partition not in self.open:
            if len(self.open) >= _MOST_OPEN:
                self.open.pop(next(iter(self.open))).close()
            self.open[partition] = self._begin(partition)
        self.open[partition].write(framed(records))

    def _begin(self, partition: str) -> _File:
        number = len(self.names)
        default = f"part-{self.task:05d}-{self.destination.job}-c{number:03d}.tfrecord"
        name = self.destination.name.format(self.task) if self.destination.name else default
        name = posixpath.join(partition, name + _SUFFIXES[self.destination.codec])
        path = f"{self.directory}/{name}"
        self.filesystem.create_dir(posixpath.dirname(path), recursive=True)
        file = _File(self.filesystem.open_output_stream(path, compression=None), self.destination.codec)
        self.names.append(name)
        return file

    def close(self) -> None:
        """End all files."""
        while self.open:
            self.open.popitem()[1].close()

    def abandon(self) -> None:
        """Close what is open, and delete all of it."""
        while self.open:
            self.open.popitem()[1].stream.close()
        if self.names:
            self.filesystem.delete_dir(self.directory)


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


def commit(destination: Destination, written: Sequence[Written]) -> None:
    """Put the files of all tasks to their place, then the file of the schema, and ``_SUCCESS`` last.

    With `overwrite` what was there before is deleted first; ``_SUCCESS``, if there is one, is missing meanwhile. Raises
    ``DestinationError`` if the store fails; files of this job are deleted then, and where that fails, too, a mark stays
    that readers see.
    """
    with storage_errors(destination.uri, DestinationError, "written"):
        filesystem, path = filesystems.open_uri(destination.uri)
        filesystem.create_dir(path, recursive=True)
        before = [info for info in filesystem.get_file_info(fs.FileSelector(path)) if info.base_name != TEMPORARY]
        scratch = destination.temporary(path)
        filesystem.create_dir(scratch, recursive=True)
        _write_whole(filesystem, f"{scratch}/{COMMITTING}", b"")
        if destination.overwrite:
            _delete_all(filesystem, path, scratch, before)
            before = []
        _place(filesystem, path, destination, written, {info.base_name for info in before})
        _delete_scratch(filesystem, path, destination)
        _write_whole(filesystem, f"{path}/{SUCCESS}", b"")


def _delete_all(filesystem: fs.FileSystem, path: str, scratch: str, before: Sequence[fs.FileInfo]) -> None:
    """Delete what was there, ``_SUCCESS`` first, and what interrupted jobs have left."""
    for info in sorted(before, key=lambda info: info.base_name != SUCCESS):
        delete = filesystem.delete_dir if info.type == fs.FileType.Directory else filesystem.delete_file
        delete(info.path)
    for other in unfinished(filesystem, path):
        if other != scratch:
            filesystem.delete_dir(other)


def _place(
    filesystem: fs.FileSystem, path: str, destination: Destination, written: Sequence[Written], before: set[str]
) -> None:
    """Move all files, and write the schema; `before` has the names of what was there. After an error all is as then."""
    keeps_schema = SCHEMA_FILE in before or not any(not name.startswith(("_", ".")) for name in before)
    if SUCCESS in before:
        filesystem.delete_file(f"{path}/{SUCCESS}")
    placed: list[str] = []
    made: set[str] = set()
    try:
        for source, name in (file for task in written for file in task.files):
            target = f"{path}/{name}"
            if posixpath.dirname(target) not in made:
                filesystem.create_dir(posixpath.dirname(target), recursive=True)
                made.add(posixpath.dirname(target))
            placed.append(target)
            filesystem.move(f"{destination.temporary(path)}/{source}", target)
        if destination.schema is not None and keeps_schema:
            _write_whole(filesystem, f"{path}/{SCHEMA_FILE}", json.dumps(destination.schema).encode())
    except BaseException:
        with contextlib.suppress(OSError):  # then the mark stays
            for target in placed:
                if filesystem.get_file_info(target).type == fs.FileType.File:
                    filesystem.delete_file(target)
            if SUCCESS in before:
                _write_whole(filesystem, f"{path}/{SUCCESS}", b"")
            filesystem.delete_file(f"{destination.temporary(path)}/{COMMITTING}")
        raise


def _write_whole(filesystem: fs.FileSystem, path: str, content: bytes) -> None:
    with filesystem.open_output_stream(path, compression=None) as stream:
        stream.write(content)


def abandon(destination: Destination) -> None:
    """Delete what tasks have written that was not committed, unless some of it is at its place by now."""
    filesystem, path = filesystems.open_uri(destination.uri)
    if filesystem.get_file_info(f"{destination.temporary(path)}/{COMMITTING}").type == fs.FileType.NotFound:
        _delete_scratch(filesystem, path, destination)


def _delete_scratch(filesystem: fs.FileSystem, path: str, destination: Destination) -> None:
    scratch = destination.temporary(path)
    if filesystem.get_file_info(scratch).type == fs.FileType.Directory:
        filesystem.delete_dir(scratch)
    others = filesystem.get_file_info(fs.FileSelector(f"{path}/{TEMPORARY}", allow_not_found=True))
    if not others and filesystem.get_file_info(f"{path}/{TEMPORARY}").type == fs.FileType.Directory:
        filesystem.delete_dir(f"{path}/{TEMPORARY}")
