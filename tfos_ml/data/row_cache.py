"""Directories of rows that a fit has written for later fits: which files are a whole copy, and which are left over.

A copy is a directory of Parquet files, and a file of JSON beside it lists those of the copy that counts. That list is
written last, and in one step. Each copy has a directory of its own, so that copies are never mixed.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.data.file_plan import FilePiece, FilePlan, PlannedFile
from tfos_ml.data.schema import ROW_COLUMN
from tfos_ml.data.validation_draw import ValidationDraw

KEY_CHARACTERS = 32
_LIST = re.compile(rf"tfos_ml-([0-9a-f]{{{KEY_CHARACTERS}}})\.json")
_COPY = re.compile(rf"tfos_ml-([0-9a-f]{{{KEY_CHARACTERS}}})-[0-9a-f]{{12}}")
_FORMAT = 1


@dataclass(frozen=True)
class WrittenFile:
    """A file of a copy, as the task tells that wrote it."""

    partition: int
    name: str
    size: int  # bytes
    row_groups: int
    rows: int


@dataclass(frozen=True)
class CachedRows:
    """A whole copy of the rows of a DataFrame."""

    key: str
    directory: str = field(repr=False)  # as ``filesystems.open_uri`` takes it
    files: tuple[WrittenFile, ...]
    used: float  # seconds since 1970, when a fit last began to use it
    modified: dict[str, int | None] = field(default_factory=dict)  # by name: nanoseconds since 1970, if they are told

    @property
    def rows(self) -> int:
        """Number of all rows."""
        return sum(file.rows for file in self.files)

    def plan(self, columns: int, validation: str | ValidationDraw | None) -> FilePlan:
        """How nodes read the copy, which has so many columns to feed."""
        files = sorted(self.files, key=lambda file: file.partition)
        planned = [
            PlannedFile(filesystems.child_uri(self.directory, file.name), file.size, self.modified[file.name])
            for file in files
        ]
        pieces = [FilePiece(f.partition, i, tuple(range(f.row_groups)), f.rows, f.size) for i, f in enumerate(files)]
        names = tuple(f"c{i}" for i in range(columns))
        return FilePlan(tuple(planned), tuple(pieces), names, validation, row_ids=ROW_COLUMN)


def new_copy(cache_dir: str, key: str) -> str:
    """The directory for another copy."""
    return filesystems.child_uri(cache_dir, f"tfos_ml-{key}-{uuid.uuid4().hex[:12]}")


def find(cache_dir: str, key: str, expiry: float | None) -> CachedRows | None:
    """The whole copy of that key that has been used within so many seconds; None if there is none.

    Raises ``StorageError`` if the directory cannot be reached.
    """
    listed = filesystems.request(filesystems.child_uri(cache_dir, f"tfos_ml-{key}.json"), _read)
    if listed is None or listed.get("format") != _FORMAT or listed.get("key") != key:
        return None
    files = tuple(WrittenFile(**file) for file in listed["files"])
    directory = filesystems.child_uri(cache_dir, listed["directory"])
    is_expired = expiry is not None and time.time() - listed["used"] > expiry
    return None if is_expired else _checked(CachedRows(key, directory, files, listed["used"]))


def publish(cache_dir: str, copy: CachedRows) -> CachedRows | None:
    """Make a copy that has been written, or is used again, the one of its key; None if files of it are not whole."""
    name = _name_of(copy.directory)
    listed = {"format": _FORMAT, "key": copy.key, "directory": name, "used": copy.used}
    text = json.dumps({**listed, "files": [asdict(file) for file in copy.files]}).encode()

    def write(filesystem: fs.FileSystem, path: str) -> None:
        partial = f"{path}.partial-{uuid.uuid4().hex[:12]}"
        with filesystem.open_output_stream(partial) as stream:
            stream.write(text)
        filesystem.move(partial, path)

    checked = _checked(copy)
    if checked is not None:
        filesystems.request(filesystems.child_uri(cache_dir, f"tfos_ml-{copy.key}.json"), write)
    return checked


def discard(directory: str) -> None:
    """Delete a copy that is not to be published."""
    filesystems.request(directory, _delete_dir)


def delete(cache_dir: str, unused_for: float) -> int:
    """Delete all copies that no fit has begun to use for so many seconds, and what is left of others; their number.

    Raises ``StorageError`` if the directory cannot be reached.
    """
    deleted: int = filesystems.request(cache_dir, lambda filesystem, path: _delete(filesystem, path, unused_for))
    return deleted


def _delete(filesystem: fs.FileSystem, path: str, unused_for: float) -> int:
    before = time.time() - unused_for
    listed = list(filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)))
    kept = set()
    for info in listed:
        if _LIST.fullmatch(info.base_name):
            found = _read(filesystem, info.path)
            if found is not None and found["used"] > before:
                kept.add(found["directory"])
            elif found is not None:
                filesystem.delete_file(info.path)
    copies = [info for info in listed if _COPY.fullmatch(info.base_name) and info.base_name not in kept]
    old = [info for info in copies if _latest(filesystem, info) <= before]
    for info in old:
        _delete_dir(filesystem, info.path)
    return len(old)


def _latest(filesystem: fs.FileSystem, directory: fs.FileInfo) -> float:
    """When something in a copy was last written; 0 where that is not told."""
    inside = filesystem.get_file_info(fs.FileSelector(directory.path, allow_not_found=True))
    return max((info.mtime_ns or 0 for info in [directory, *inside]), default=0) / 1e9


def _checked(copy: CachedRows) -> CachedRows | None:
    """A copy with the times of its files; None if one of them is missing or has another size."""

    def look(filesystem: fs.FileSystem, path: str) -> Iterable[fs.FileInfo]:
        found: list[fs.FileInfo] = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return found

    found = {info.base_name: info for info in filesystems.request(copy.directory, look)}
    if any(file.name not in found or found[file.name].size != file.size for file in copy.files):
        return None
    times = {file.name: found[file.name].mtime_ns for file in copy.files}
    return CachedRows(copy.key, copy.directory, copy.files, copy.used, times)


def _read(filesystem: fs.FileSystem, path: str) -> dict[str, Any] | None:
    """What a file of JSON holds; None if it is not there, or none that :func:`publish` has written."""
    if filesystem.get_file_info(path).type != fs.FileType.File:
        return None
    try:
        with filesystem.open_input_stream(path) as stream:
            found = json.loads(stream.read())
    except (ValueError, FileNotFoundError):
        return None
    return found if isinstance(found, dict) and {"used", "directory", "files"} <= set(found) else None


def _delete_dir(filesystem: fs.FileSystem, path: str) -> None:
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        filesystem.delete_dir(path)


def _name_of(uri: str) -> str:
    return uri.partition("?")[0].rpartition("/")[2]
