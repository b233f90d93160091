"""SavedModels at a URI: published whole or not at all, and fetched."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact, secrets_of_uri
from tfos_ml.errors import DestinationError, ModelError

Listing = tuple[tuple[str, int, int], ...]


def stage(directory: str, uri: str, run_id: str) -> None:
    """Copy a local SavedModel next to a URI, where :func:`commit` finds it; nothing is left of a copy that fails.

    The attempt's `run_id` makes the temporary name unique.
    """
    filesystem, path = filesystems.open_uri(uri)
    try:
        filesystem.create_dir(_staged(path, run_id), recursive=True)
        fs.copy_files(directory, _staged(path, run_id), fs.LocalFileSystem(), filesystem)
    except BaseException:
        with contextlib.suppress(OSError):  # of a store that is gone; what is left is under a name that is no model's
            discard(uri, run_id)
        raise


def commit(uri: str, run_id: str) -> None:
    """Make a staged SavedModel appear at its URI, whole or not at all.

    Only the driver does so, for the one attempt that has succeeded: whatever a node that is cut off, or an attempt that
    was given up, may still write, it is never this. Raises ``DestinationError`` if something is at the URI by now, the
    driver does not see what the chief has staged, or cannot write there.
    """
    try:
        _commit(*filesystems.open_uri(uri), uri, run_id)
    except (OSError, pa.ArrowException) as error:
        why = redact(error, secrets=secrets_of_uri(uri))
        raise DestinationError(f"exportDir={redact(uri)!r} cannot be published to by the driver: {why}") from None


def _commit(filesystem: fs.FileSystem, path: str, uri: str, run_id: str) -> None:
    staged = _staged(path, run_id)
    if filesystem.get_file_info(staged).type != fs.FileType.Directory:
        raise DestinationError(
            f"exportDir={redact(uri)!r}: the chief has written {staged}, but the driver does not see it. Use storage "
            "that the driver and all nodes reach alike, or unset exportDir: the model then comes back with the results."
        )
    _move(filesystem, staged, path, lambda: _check_unused(filesystem, path, uri))


def _move(filesystem: fs.FileSystem, staged: str, path: str, check: Callable[[], None] = lambda: None) -> None:
    """Put what was staged in its place, after a check."""
    check()
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        filesystem.delete_dir(path)
    try:
        filesystem.move(staged, path)
    except (OSError, NotImplementedError):  # object stores move no directories
        check()
        _copy(filesystem, staged, path)
        filesystem.delete_dir(staged)


def _copy(filesystem: fs.FileSystem, source: str, target: str) -> None:
    """Copy a SavedModel within a store: its ``saved_model.pb``, without which it is none, last."""
    files = [info.path for info in filesystem.get_file_info(fs.FileSelector(source, recursive=True)) if info.is_file]
    try:
        for path in sorted(files, key=lambda path: path.endswith("/saved_model.pb")):
            copy = target + path.removeprefix(source)
            filesystem.create_dir(copy.rpartition("/")[0], recursive=True)
            filesystem.copy_file(path, copy)
    except BaseException:
        with contextlib.suppress(OSError):  # of a store that is gone; what is left is no SavedModel
            filesystem.delete_dir(target)
        raise


def _check_unused(filesystem: fs.FileSystem, path: str, uri: str) -> None:
    if filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        raise DestinationError(f"exportDir={redact(uri)!r} has been filled by somebody else since the fit began")


def publish_directory(directory: str, uri: str) -> None:
    """Copy a SavedModel to a URI, in place of what is there; for nodes of programs that lead themselves."""
    run_id = uuid.uuid4().hex[:12]
    stage(directory, uri, run_id)
    filesystem, path = filesystems.open_uri(uri)
    _move(filesystem, _staged(path, run_id), path)


def discard(uri: str, run_id: str) -> None:
    """Delete what was staged, if anything was."""
    filesystem, path = filesystems.open_uri(uri)
    staged = _staged(path, run_id)
    if filesystem.get_file_info(staged).type != fs.FileType.NotFound:
        filesystem.delete_dir(staged)


def _staged(path: str, run_id: str) -> str:
    return f"{path.rstrip('/')}.partial-{run_id}"


def fetch(uri: str, directory: str) -> Listing:
    """Copy what is at a URI into a new local directory; returns what was there before it was copied.

    Raises ``ModelError`` if there is nothing, or it cannot be read.
    """
    listed = listing(uri)
    if listed is None:
        raise ModelError(f"There is no SavedModel at exportDir={redact(uri)!r} as seen from the driver.")
    filesystem, path = filesystems.open_uri(uri)
    Path(directory).mkdir(exist_ok=True)
    try:
        fs.copy_files(path, directory, filesystem, fs.LocalFileSystem())
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(uri, redact(error, secrets=secrets_of_uri(uri))) from None
    return listed


def listing(uri: str) -> Listing | None:
    """What is at a URI, by path: sizes and times. None if there is no directory.

    Raises ``ModelError`` if it cannot be read, or does not answer within ``filesystems.DEADLINE``.
    """

    def find(filesystem: fs.FileSystem, path: str) -> Listing | None:
        if filesystem.get_file_info(path).type != fs.FileType.Directory:
            return None
        infos = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
        return tuple(sorted((info.path, info.size or 0, info.mtime_ns or 0) for info in infos if info.is_file))

    try:
        return filesystems.request(uri, find)
    except filesystems.StorageError as error:
        raise _unreadable(uri, str(error)) from None


def _unreadable(uri: str, why: str) -> ModelError:
    return ModelError(f"exportDir={redact(uri)!r} cannot be read from the driver: {why}.")


def check_destination(uri: str) -> str | None:
    """Why nothing can be published at a URI, or None if it can."""
    try:
        return filesystems.request(uri, _obstacle)
    except filesystems.StorageError as error:
        return str(error)


def check_log_dir(uri: str) -> None:
    """Raise ``DestinationError`` if event files cannot be copied to a URI, as seen from here."""
    name = f".preflight-{uuid.uuid4().hex[:12]}"
    try:
        filesystems.request(uri, lambda found, path: filesystems.write_and_delete(found, f"{path.rstrip('/')}/{name}"))
    except filesystems.StorageError as error:
        raise DestinationError(
            f"logDir={redact(uri)!r} cannot be written: {error}. TensorFlow writes only local paths and gs:// by "
            "itself; event files for other stores are copied through pyarrow.fs. Choose such a URI, or a local path."
        ) from None


def _obstacle(filesystem: fs.FileSystem, path: str) -> str | None:
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.File:
        return "it is a file"
    if info.type == fs.FileType.Directory and filesystem.get_file_info(fs.FileSelector(path)):
        return "it exists and is not empty"
    probe = f"{path.rstrip('/')}.partial-probe"
    made = _first_missing(filesystem, probe)
    try:
        filesystem.create_dir(probe)
        filesystem.delete_dir(made)
    except OSError as error:
        raise OSError(f"it cannot be written: {error}") from None
    return None


def _first_missing(filesystem: fs.FileSystem, path: str) -> str:
    """The outermost directory of a path that is not there yet."""
    parent = path.rpartition("/")[0]
    if not parent or filesystem.get_file_info(parent).type != fs.FileType.NotFound:
        return path
    return _first_missing(filesystem, parent)
