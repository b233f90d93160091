"""A node's SavedModel on its way out: packed into one file, or published at a URI."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from tfos_ml.errors import DestinationError, ModelError


def pack(directory: str, destination: Path) -> Path:
    """One uncompressed tar file with the content of `directory`, made in `destination`."""
    archive = Path(destination) / "saved_model.tar"
    with tarfile.open(archive, "w") as tar:
        for path in sorted(Path(directory).rglob("*")):
            tar.add(path, path.relative_to(directory), recursive=False)
    return archive


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
                raise DestinationError(f"exportDir={uri!r} has been filled by somebody else since the fit began")
            filesystem.delete_dir(path)
        filesystem.move(partial, path)
    except BaseException:
        if filesystem.get_file_info(partial).type != fs.FileType.NotFound:
            filesystem.delete_dir(partial)
        raise


def fetch(uri: str, directory: str) -> None:
    """Copy what is at a URI into a new local directory.

    Raises
    ------
    ModelError
        If there is nothing.
    """
    filesystem, path = fs.FileSystem.from_uri(uri)
    if filesystem.get_file_info(path).type != fs.FileType.Directory:
        raise ModelError(f"There is no SavedModel at exportDir={uri!r} as seen from the driver.")
    fs.copy_files(path, directory, filesystem, fs.LocalFileSystem())


def check_destination(uri: str) -> str | None:
    """Why nothing can be published at a URI, or None if it can."""
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, ValueError) as error:
        return f"it is no absolute path and no URI that pyarrow.fs understands ({error})"
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
        return f"it cannot be written: {error}"
    return None


def _first_missing(filesystem: fs.FileSystem, path: str) -> str:
    """The outermost directory of a path that is not there yet."""
    parent = path.rpartition("/")[0]
    if not parent or filesystem.get_file_info(parent).type != fs.FileType.NotFound:
        return path
    return _first_missing(filesystem, parent)
