"""Moves the files that tasks have written into place. All files appear when the driver commits, or none."""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Sequence

from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact
from tfos_ml.errors import DestinationError
from tfos_ml.tfrecord.files import COMMITTING, SCHEMA_FILE, SUCCESS, TEMPORARY, read_schema, storage_errors, unfinished
from tfos_ml.tfrecord.writing import Destination, Written

ERROR, APPEND, OVERWRITE, IGNORE = "error", "append", "overwrite", "ignore"


def prepare(destination: Destination, mode: str) -> bool:
    """Check that the directory can be written to, without changing it; False if mode ``ignore`` leaves it as it is.

    Raises ``DestinationError`` if the directory cannot be written to, if it is not empty and the mode is ``error``, or
    if it holds other columns and the mode is ``append``.
    """
    with storage_errors(destination.uri, DestinationError, "written"):
        filesystem, path = filesystems.open_uri(destination.uri)
        info = filesystem.get_file_info(path)
        if info.type == fs.FileType.File:
            raise DestinationError(f"{redact(destination.uri)} is a file; expected a directory or a new path.")
        if info.type == fs.FileType.Directory and filesystem.get_file_info(fs.FileSelector(path)):
            if mode == IGNORE:
                return False
            if mode == ERROR:
                raise DestinationError(
                    f"{redact(destination.uri)} exists already. Write the TFRecords to a new directory, or set mode to "
                    "'append' or 'overwrite'."
                )
            if mode == APPEND:
                _check_same(destination, filesystem, path)
        filesystems.write_and_delete(filesystem, f"{path}/{TEMPORARY}/.preflight-{destination.job}")
    return True


def _check_same(destination: Destination, filesystem: fs.FileSystem, path: str) -> None:
    from pyspark.sql.types import StructType

    existing = read_schema(filesystem, path)
    if destination.schema is None or existing is None:
        return
    existing_columns, new = (
        f"{StructType.fromJson(schema['schema']).simpleString()} ({schema['recordType']}, partitioned by "
        f"{schema['partitionBy']})"
        for schema in (existing, destination.schema)
    )
    if existing_columns != new:
        raise DestinationError(
            f"{redact(destination.uri)} holds {existing_columns[:500]}, but the rows to append have other columns or "
            f"another record type: {new[:500]}. Write them to another directory, or set mode to 'overwrite'."
        )


def commit(destination: Destination, written: Sequence[Written]) -> None:
    """Move the files of all tasks into place, then write the schema file, and ``_SUCCESS`` last.

    With ``overwrite``, the old files are deleted first. An old ``_SUCCESS`` is missing during the commit. If the store
    fails, the files of this job are deleted, and ``DestinationError`` is raised. If the store fails to delete them, a
    marker file stays, and readers refuse the directory.
    """
    with storage_errors(destination.uri, DestinationError, "written"):
        filesystem, path = filesystems.open_uri(destination.uri)
        filesystem.create_dir(path, recursive=True)
        before = [info for info in filesystem.get_file_info(fs.FileSelector(path)) if info.base_name != TEMPORARY]
        scratch = destination.temporary(path)
        filesystem.create_dir(scratch, recursive=True)
        _write(filesystem, f"{scratch}/{COMMITTING}", b"")
        if destination.overwrite:
            _delete_all(filesystem, path, scratch, before)
            before = []
        _place(filesystem, path, destination, written, {info.base_name for info in before})
        _delete_scratch(filesystem, path, scratch)
        _write(filesystem, f"{path}/{SUCCESS}", b"")


def _delete_all(filesystem: fs.FileSystem, path: str, scratch: str, before: Sequence[fs.FileInfo]) -> None:
    """Delete the old files, ``_SUCCESS`` first, and the files that interrupted jobs have left."""
    for info in sorted(before, key=lambda info: info.base_name != SUCCESS):
        delete = filesystem.delete_dir if info.type == fs.FileType.Directory else filesystem.delete_file
        delete(info.path)
    for other in unfinished(filesystem, path):
        if other != scratch:
            filesystem.delete_dir(other)


def _place(
    filesystem: fs.FileSystem, path: str, destination: Destination, written: Sequence[Written], before: set[str]
) -> None:
    """Move all files and write the schema file; undo both on an error. `before` has the names of the old files."""
    scratch = destination.temporary(path)
    keeps_schema = SCHEMA_FILE in before or all(name.startswith(("_", ".")) for name in before)
    if SUCCESS in before:
        filesystem.delete_file(f"{path}/{SUCCESS}")
    files = [(f"{scratch}/{source}", f"{path}/{name}") for task in written for source, name in task.files]
    placed: list[str] = []
    try:
        for directory in {posixpath.dirname(target) for _, target in files}:
            filesystem.create_dir(directory, recursive=True)
        for source, target in files:
            placed.append(target)
            filesystem.move(source, target)
        if destination.schema is not None and keeps_schema:
            _write(filesystem, f"{path}/{SCHEMA_FILE}", json.dumps(destination.schema).encode())
    except BaseException:
        with contextlib.suppress(OSError):  # if this fails, the marker file stays
            for target in placed:
                if filesystem.get_file_info(target).type == fs.FileType.File:
                    filesystem.delete_file(target)
            if SUCCESS in before:
                _write(filesystem, f"{path}/{SUCCESS}", b"")
            filesystem.delete_file(f"{scratch}/{COMMITTING}")
        raise


def _write(filesystem: fs.FileSystem, path: str, content: bytes) -> None:
    with filesystem.open_output_stream(path, compression=None) as stream:
        stream.write(content)


def abandon(destination: Destination) -> None:
    """Delete the uncommitted files of all tasks, unless the commit has already moved some of them."""
    filesystem, path = filesystems.open_uri(destination.uri)
    scratch = destination.temporary(path)
    if filesystem.get_file_info(f"{scratch}/{COMMITTING}").type == fs.FileType.NotFound:
        _delete_scratch(filesystem, path, scratch)


def _delete_scratch(filesystem: fs.FileSystem, path: str, scratch: str) -> None:
    if filesystem.get_file_info(scratch).type == fs.FileType.Directory:
        filesystem.delete_dir(scratch)
    others = filesystem.get_file_info(fs.FileSelector(f"{path}/{TEMPORARY}", allow_not_found=True))
    if not others and filesystem.get_file_info(f"{path}/{TEMPORARY}").type == fs.FileType.Directory:
        filesystem.delete_dir(f"{path}/{TEMPORARY}")
