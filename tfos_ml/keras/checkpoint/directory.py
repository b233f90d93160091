"""Where checkpoints are in ``modelDir``, and whether it can be used."""

from __future__ import annotations

import uuid

from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact
from tfos_ml.errors import DestinationError

FOLDER = "tfos_ml"


def check_model_dir(uri: str) -> None:
    """Raise ``DestinationError`` if this process cannot read or write ``modelDir``."""
    try:
        names = filesystems.request(uri, _names)
    except filesystems.StorageError as error:
        raise DestinationError(f"modelDir={redact(uri)!r} cannot be read: {error}.") from None
    if names is None or (names and FOLDER not in names):
        obstacle = "is a file" if names is None else f"holds other files: {names[:5]}"
        raise DestinationError(
            f"modelDir={redact(uri)!r} {obstacle}. Choose a new directory, or one of an earlier fit."
        )
    try:
        filesystems.request(uri, _write)
    except filesystems.StorageError as error:
        raise DestinationError(f"modelDir={redact(uri)!r} cannot be written: {error}.") from None


def _write(filesystem: fs.FileSystem, path: str) -> None:
    """Write a file beside the checkpoints and delete it; other processes may do the same."""
    filesystems.write_and_delete(filesystem, f"{path.rstrip('/')}/{FOLDER}/.preflight-{uuid.uuid4().hex[:12]}")


def _names(filesystem: fs.FileSystem, path: str) -> list[str] | None:
    """The entries of a directory, none if it does not exist; None for a file."""
    file_type = filesystem.get_file_info(path).type
    if file_type == fs.FileType.Directory:
        return sorted(entry.base_name for entry in filesystem.get_file_info(fs.FileSelector(path)))
    return None if file_type == fs.FileType.File else []
