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


def stage(directory: str, uri: str, run_id: str) -> None:
    """Copy a SavedModel next to a URI, where :func:`commit` finds it; nothing is left of a copy that fails.

    Parameters
    ----------
    directory : str
        The local SavedModel.
    uri : str
        An absolute path or any URI that ``pyarrow.fs`` understands.
    run_id : str
        Of the attempt; makes the temporary name unique.
    """
    filesystem, path = fs.FileSystem.from_uri(uri)
    try:
        fs.copy_files(directory, _staged(path, run_id), fs.LocalFileSystem(), filesystem)
    except BaseException:
        discard(uri, run_id)
        raise


def commit(uri: str, run_id: str) -> None:
    """Make a staged SavedModel appear at its URI, whole or not at all.

    Only the driver does so, for the one attempt that has succeeded: whatever a node that is cut off, or an attempt
    that was given up, may still write, it is never this.

    Raises
    ------
    DestinationError
        If something is at the URI by now, or the driver does not see what the chief has staged.
    """
    filesystem, path = fs.FileSystem.from_uri(uri)
    staged = _staged(path, run_id)
    if filesystem.get_file_info(staged).type != fs.FileType.Directory:
        raise DestinationError(
            f"exportDir={uri!r}: the chief has written {staged}, but the driver does not see it. Use storage that the "
            "driver and all nodes reach alike, or unset exportDir: the model then comes back with the results."
        )
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        if filesystem.get_file_info(fs.FileSelector(path)):
            discard(uri, run_id)
            raise DestinationError(f"exportDir={uri!r} has been filled by somebody else since the fit began")
        filesystem.delete_dir(path)
    try:
        filesystem.move(staged, path)
    except (OSError, NotImplementedError):  # object stores move no directories
        fs.copy_files(staged, path, filesystem, filesystem)
        filesystem.delete_dir(staged)


def discard(uri: str, run_id: str) -> None:
    """Delete what was staged, if anything was."""
    filesystem, path = fs.FileSystem.from_uri(uri)
    staged = _staged(path, run_id)
    if filesystem.get_file_info(staged).type != fs.FileType.NotFound:
        filesystem.delete_dir(staged)


def _staged(path: str, run_id: str) -> str:
    return f"{path.rstrip('/')}.partial-{run_id}"


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
