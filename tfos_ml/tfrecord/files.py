"""Finds the files of a data set: paths and patterns, partition directories, and the schema file."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.hadoop import pyarrow_uri
from tfos_ml.common.redact import redact
from tfos_ml.errors import DataError, EmptyDataError, ShapeError, TfosMlError

SCHEMA_FILE = "_tfrecord_schema.json"
SUCCESS, TEMPORARY = "_SUCCESS", "_temporary"
COMMITTING = "_committing"
"""A file in the temporary directory of a job while it commits."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_PATTERN = re.compile(r"[*?\[]")
_UNSAFE = re.compile("[\x00-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")  # in names of directories; Hive's set


@dataclass(frozen=True)
class DataFile:
    """A file of records."""

    root: str = field(repr=False)  # path, or URI that ``filesystems.open_uri`` opens, with credentials
    path: str  # in the filesystem of `root`
    size: int  # bytes
    partition: tuple[tuple[str, str | None], ...] = ()  # columns and values from the names of its directories

    @property
    def shown(self) -> str:
        """The path or URI for messages, without credentials."""
        scheme, host, *_ = urlsplit(self.root)
        if scheme in ("", "file"):
            return self.path
        bucket, path = host.rpartition("@")[2], self.path.lstrip("/")
        return redact(f"{scheme}://{path if path.startswith(f'{bucket}/') else f'{host}/{path}'}")


@dataclass(frozen=True)
class DataSet:
    """The files at some paths, in order, and the schemas that are saved beside them."""

    files: tuple[DataFile, ...]
    schemas: tuple[dict[str, Any] | None, ...]  # of each path; None if it has no schema file

    @property
    def partition_names(self) -> list[str]:
        """Columns from the names of directories; raises ``ShapeError`` if files differ in them."""
        by_names = {tuple(name for name, _ in file.partition): file for file in self.files}
        if len(by_names) > 1:
            (first, a), (other, b), *_ = by_names.items()
            raise ShapeError(
                f"Files are partitioned by {list(first)} ({a.shown}) and by {list(other)} ({b.shown}). Read the "
                "directories separately."
            )
        return list(next(iter(by_names), ()))


def located(path: str, stores: Mapping[str, str] | None = None) -> str:
    """A path or URI in a form that means the same in all processes.

    `stores` has Hadoop's settings for S3; None stands for those of the SparkContext.
    """
    if path.startswith("file:"):
        return unquote("/" + path.removeprefix("file:").lstrip("/"))
    if "://" in path:
        return pyarrow_uri(path, None if stores is None else stores.get)
    return os.path.abspath(os.path.expanduser(path))


@contextlib.contextmanager
def storage_errors(uri: str, error_class: type[TfosMlError], what: str) -> Iterator[None]:
    """Raise errors of a filesystem as `error_class`, with advice and without credentials."""
    try:
        with filesystems.storage_errors(uri):
            yield
    except filesystems.StorageError as error:
        raise error_class(f"TFRecords at {redact(uri)!r} cannot be {what}: {error}.") from None


def find(paths: Sequence[str], stores: Mapping[str, str] | None = None) -> DataSet:
    """Find all files at paths, in directories and by patterns; `stores` as for :func:`located`.

    Raises ``EmptyDataError`` if a path or pattern matches nothing. Raises ``DataError`` if a path cannot be read, or
    the job that writes it is not complete.
    """
    files: list[DataFile] = []
    schemas = []
    for path in paths:
        uri = located(path, stores)
        with storage_errors(uri, DataError, "read"):
            for root, filesystem, place in _expanded(uri):
                _check_committed(filesystem, place, uri)
                files += _files_at(root, filesystem, place)
                schemas.append(read_schema(filesystem, place))
    return DataSet(tuple(sorted(files, key=lambda file: (file.root, file.path))), tuple(schemas))


def unfinished(filesystem: fs.FileSystem, directory: str) -> list[str]:
    """Temporary directories of jobs whose commit is running, or was interrupted."""
    jobs = filesystem.get_file_info(fs.FileSelector(f"{directory}/{TEMPORARY}", allow_not_found=True))
    marks = filesystem.get_file_info([f"{job.path}/{COMMITTING}" for job in jobs])
    return [mark.path.rpartition("/")[0] for mark in marks if mark.type == fs.FileType.File]


def _check_committed(filesystem: fs.FileSystem, place: str, uri: str) -> None:
    for job in unfinished(filesystem, place):
        raise DataError(
            f"A job that writes to {redact(uri)!r} is committing, or was interrupted ({job}). If no such job runs, "
            "write the TFRecords again with mode 'overwrite', or to another directory."
        )


def _expanded(uri: str) -> Iterable[tuple[str, fs.FileSystem, str]]:
    """The existing paths that a path or pattern matches, each with its root and filesystem."""
    address, mark, query = uri.partition("?") if "://" in uri else (uri, "", "")
    parts = address.split("/")
    first = next((i for i, part in enumerate(parts) if _PATTERN.search(part)), len(parts))
    root = "/".join(parts[:first]) + mark + query
    filesystem, start = filesystems.open_uri(root or "/")
    places = [start.rstrip("/") or "/"]
    if first < len(parts):
        places = sorted(_matches(filesystem, places[0], parts[first:]))
    existing = [info.path for info in filesystem.get_file_info(places) if info.type != fs.FileType.NotFound]
    if not existing:
        raise EmptyDataError(f"There are no TFRecords at {redact(uri)}. Check the path.")
    return [(root or "/", filesystem, place) for place in existing]


def _matches(filesystem: fs.FileSystem, directory: str, patterns: Sequence[str]) -> Iterator[str]:
    """Paths below a directory that match `patterns`, one for each level."""
    pattern, *below = patterns
    for info in filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True)):
        if _hidden(info.base_name) or not fnmatch.fnmatchcase(info.base_name, pattern):
            continue
        if not below:
            yield info.path
        elif info.type == fs.FileType.Directory:
            yield from _matches(filesystem, info.path, below)


def _files_at(root: str, filesystem: fs.FileSystem, place: str) -> list[DataFile]:
    info = filesystem.get_file_info(place)
    if info.type == fs.FileType.File:
        return [DataFile(root, place, info.size)]
    files = []
    for info in filesystem.get_file_info(fs.FileSelector(place, recursive=True)):
        below = info.path[len(place.rstrip("/")) + 1 :].split("/")
        if info.type == fs.FileType.File and not any(map(_hidden, below)):
            files.append(DataFile(root, info.path, info.size, _partition(below[:-1])))
    return files


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _partition(directories: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    pairs = [name.partition("=") for name in directories if "=" in name]
    return tuple((unquote(name), None if value == NULL_PARTITION else unquote(value)) for name, _, value in pairs)


def partition_directory(names: Sequence[str], values: Sequence[str | None]) -> str:
    """The directories of a partition, named like Spark's."""
    return "/".join(
        f"{_escaped(name)}={NULL_PARTITION if value in (None, '') else _escaped(str(value))}"
        for name, value in zip(names, values, strict=True)
    )


def _escaped(text: str) -> str:
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", text)


def partition_type(values: Iterable[str | None]) -> pa.DataType:
    """The type that Spark infers for values in names of directories: int, long, double or string."""
    texts = [value for value in values if value is not None]
    if texts and all(re.fullmatch(r"[+-]?\d{1,18}", text) for text in texts):
        return pa.int32() if all(abs(int(text)) < 1 << 31 for text in texts) else pa.int64()
    if texts and all(re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) for text in texts):
        return pa.float64()
    return pa.string()


def read_schema(filesystem: fs.FileSystem, directory: str) -> dict[str, Any] | None:
    """The content of the schema file in a directory; None if there is none."""
    path = f"{directory}/{SCHEMA_FILE}"
    if filesystem.get_file_info(path).type != fs.FileType.File:
        return None
    with filesystem.open_input_stream(path) as stream:
        schema: dict[str, Any] = json.loads(stream.read())
    return schema
