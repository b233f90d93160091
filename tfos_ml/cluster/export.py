"""A node's SavedModel on its way out: packed into one file, or published at a URI."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from tfos_ml import storage
from tfos_ml.errors import DestinationError, ModelError
from tfos_ml.redact import redact, secrets_of_uri

Listing = tuple[tuple[str, int, int], ...]


def pack(directory: str, destination: Path) -> Path:
    """One uncompressed tar file with the content of `directory`, made in `destination`.

    The same content makes the same bytes, whenever, wherever and by whom it was written: models are
    told apart by the hash of this file.
    """
    archive = Path(destination) / "saved_model.tar"
    with tarfile.open(archive, "w", dereference=True) as tar:
        for path in sorted(Path(directory).rglob("*")):
            tar.add(path, path.relative_to(directory), recursive=False, filter=_content_only)
    return archive


def _content_only(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member without what differs between copies of a file."""
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def publish(directory: str, uri: str, run_id: str) -> None:
    """Copy a SavedModel to a URI so that it appears there whole or not at all.

    Parameters
    ----------
    directory : str
        The local SavedModel.
    uri : str
        An absolute path or any URI that ``pyarrow.fs`` understands.
    run_id : str
        Makes the temporary name unique.
    """
    filesystem, path = fs.FileSystem.from_uri(uri)
    partial = f"{path.rstrip('/')}.partial-{run_id}"
    try:
        fs.copy_files(directory, partial, fs.LocalFileSystem(), filesystem)
        if filesystem.get_file_info(path).type == fs.FileType.Directory:
            if filesystem.get_file_info(fs.FileSelector(path)):
                raise DestinationError(
                    f"exportDir={redact(uri)!r} has been filled by somebody else since the fit began"
                )
            filesystem.delete_dir(path)
        filesystem.move(partial, path)
    except BaseException:
        if filesystem.get_file_info(partial).type != fs.FileType.NotFound:
            filesystem.delete_dir(partial)
        raise


def fetch(uri: str, directory: str) -> Listing:
    """Copy what is at a URI into a new local directory; returns what was there before it was copied.

    Raises
    ------
    ModelError
        If there is nothing, or it cannot be read.
    """
    found = listing(uri)
    if found is None:
        raise ModelError(f"There is no SavedModel at exportDir={redact(uri)!r} as seen from the driver.")
    filesystem, path = storage.open_uri(uri)
    Path(directory).mkdir(exist_ok=True)
    try:
        fs.copy_files(path, directory, filesystem, fs.LocalFileSystem())
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(uri, redact(error, secrets=secrets_of_uri(uri))) from None
    return found


def listing(uri: str) -> Listing | None:
    """What is at a URI, by path: sizes and times. None if there is no directory.

    Raises
    ------
    ModelError
        If it cannot be read, or does not answer within ``storage.DEADLINE``.
    """

    def find(filesystem: fs.FileSystem, path: str) -> Listing | None:
        if filesystem.get_file_info(path).type != fs.FileType.Directory:
            return None
        found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
        return tuple(sorted((info.path, info.size or 0, info.mtime_ns or 0) for info in found if info.is_file))

    try:
        return storage.ask(uri, find)
    except storage.StorageError as error:
        raise _unreadable(uri, str(error)) from None


def _unreadable(uri: str, why: str) -> ModelError:
    return ModelError(f"exportDir={redact(uri)!r} cannot be read from the driver: {why}.")


def check_destination(uri: str) -> str | None:
    """Why nothing can be published at a URI, or None if it can."""
    try:
        return storage.ask(uri, _obstacle)
    except storage.StorageError as error:
        return str(error)


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
