"""Publishes SavedModels at a URI, completely or not at all, and fetches them."""

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
    """Copy a local SavedModel to a temporary directory next to the URI, for :func:`commit`.

    The `run_id` of the attempt makes the temporary name unique. If copying fails, the temporary directory is deleted.
    """
    filesystem, path = filesystems.open_uri(uri)
    try:
        filesystem.create_dir(_staged(path, run_id), recursive=True)
        fs.copy_files(directory, _staged(path, run_id), fs.LocalFileSystem(), filesystem)
    except BaseException:
        with contextlib.suppress(OSError):  # if the store is unreachable, the temporary directory stays
            discard(uri, run_id)
        raise


def commit(uri: str, run_id: str) -> None:
    """Move a staged SavedModel to its URI.

    Only the driver calls this, for the attempt that has succeeded. So nodes that have lost their connection, and
    attempts that were given up, can never write to the URI. Raises ``DestinationError`` if the URI is not empty any
    more, if the driver does not see the staged files, or if it cannot write to the URI.
    """
    try:
        _commit(*filesystems.open_uri(uri), uri, run_id)
    except (OSError, pa.ArrowException) as error:
        why = redact(error, secrets=secrets_of_uri(uri))
        raise DestinationError(f"The driver cannot publish to exportDir={redact(uri)!r}: {why}") from None


def _commit(filesystem: fs.FileSystem, path: str, uri: str, run_id: str) -> None:
    staged = _staged(path, run_id)
    if filesystem.get_file_info(staged).type != fs.FileType.Directory:
        raise DestinationError(
            f"exportDir={redact(uri)!r}: the chief has written {staged}, but the driver does not see it. Use storage "
            "that the driver and all nodes share, or unset exportDir: the model is then returned with the results."
        )
    _move(filesystem, staged, path, lambda: _check_unused(filesystem, path, uri))


def _move(filesystem: fs.FileSystem, staged: str, path: str, check: Callable[[], None] = lambda: None) -> None:
    """Move the staged directory to its path, after a check."""
    check()
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        filesystem.delete_dir(path)
    try:
        filesystem.move(staged, path)
    except (OSError, NotImplementedError):  # object stores cannot move directories
        check()
        _copy(filesystem, staged, path)
        filesystem.delete_dir(staged)


def _copy(filesystem: fs.FileSystem, source: str, target: str) -> None:
    """Copy a SavedModel within a store; ``saved_model.pb`` last, so that an incomplete copy is not a SavedModel."""
    files = [info.path for info in filesystem.get_file_info(fs.FileSelector(source, recursive=True)) if info.is_file]
    try:
        for path in sorted(files, key=lambda path: path.endswith("/saved_model.pb")):
            copy = target + path.removeprefix(source)
            filesystem.create_dir(copy.rpartition("/")[0], recursive=True)
            filesystem.copy_file(path, copy)
    except BaseException:
        with contextlib.suppress(OSError):  # if the store is unreachable, an incomplete copy stays
            filesystem.delete_dir(target)
        raise


def _check_unused(filesystem: fs.FileSystem, path: str, uri: str) -> None:
    if filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        raise DestinationError(
            f"exportDir={redact(uri)!r} is not empty any more: another program has written to it since the fit began"
        )


def publish_directory(directory: str, uri: str) -> None:
    """Copy a SavedModel to a URI, and replace the files there; for nodes without a driver that publishes."""
    run_id = uuid.uuid4().hex[:12]
    stage(directory, uri, run_id)
    filesystem, path = filesystems.open_uri(uri)
    _move(filesystem, _staged(path, run_id), path)


def discard(uri: str, run_id: str) -> None:
    """Delete the staged files, if there are any."""
    filesystem, path = filesystems.open_uri(uri)
    staged = _staged(path, run_id)
    if filesystem.get_file_info(staged).type != fs.FileType.NotFound:
        filesystem.delete_dir(staged)


def _staged(path: str, run_id: str) -> str:
    return f"{path.rstrip('/')}.partial-{run_id}"


def fetch(uri: str, directory: str) -> Listing:
    """Copy the files at a URI to a new local directory; returns their listing.

    Raises ``ModelError`` if the URI does not exist or cannot be read.
    """
    listed = listing(uri)
    if listed is None:
        raise ModelError(f"The driver finds no SavedModel at exportDir={redact(uri)!r}.")
    filesystem, path = filesystems.open_uri(uri)
    Path(directory).mkdir(exist_ok=True)
    try:
        fs.copy_files(path, directory, filesystem, fs.LocalFileSystem())
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(uri, redact(error, secrets=secrets_of_uri(uri))) from None
    return listed


def listing(uri: str) -> Listing | None:
    """The path, size and time of each file at a URI; None if it is not a directory.

    Raises ``ModelError`` if the URI cannot be read, or does not answer within ``filesystems.STORE_SECONDS``.
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
    return ModelError(f"The driver cannot read exportDir={redact(uri)!r}: {why}.")


def check_destination(uri: str) -> str | None:
    """The reason why nothing can be published at a URI; None if it can."""
    try:
        return filesystems.request(uri, _obstacle)
    except filesystems.StorageError as error:
        return str(error)


def check_log_dir(uri: str) -> None:
    """Raise ``DestinationError`` if this process cannot write event files to a URI."""
    name = f".preflight-{uuid.uuid4().hex[:12]}"
    try:
        filesystems.request(uri, lambda store, path: filesystems.write_and_delete(store, f"{path.rstrip('/')}/{name}"))
    except filesystems.StorageError as error:
        raise DestinationError(
            f"logDir={redact(uri)!r} cannot be written: {error}. TensorFlow itself writes only to local paths and "
            "gs://; for other stores, pyarrow.fs copies the event files. Set logDir to such a URI or to a local path."
        ) from None


def _obstacle(filesystem: fs.FileSystem, path: str) -> str | None:
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.File:
        return "it is a file"
    if info.type == fs.FileType.Directory and filesystem.get_file_info(fs.FileSelector(path)):
        return "it exists and is not empty"
    try:
        filesystems.write_and_delete(filesystem, f"{path.rstrip('/')}.partial-{uuid.uuid4().hex[:12]}/probe")
    except OSError as error:
        raise OSError(f"it cannot be written: {error}") from None
    return None
