"""A SavedModel as one tar file."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from functools import cached_property
from pathlib import Path, PurePosixPath


class Archive:
    """A packed SavedModel in memory; copies of a ``TFModel`` share it.

    Parameters
    ----------
    content : bytes
        The tar file, as ``tfos_ml.inference.publishing.pack`` makes it.
    """

    def __init__(self, content: bytes):
        self.content = content

    @cached_property
    def digest(self) -> str:
        """Hash of the content, by which models are told apart."""
        return hashlib.sha256(self.content).hexdigest()

    def member(self, name: str) -> bytes | None:
        """A small file that lies beside the SavedModel, if it is there."""
        with self._open() as tar:
            if name not in tar.getnames():
                return None
            file = tar.extractfile(name)
            return file.read() if file else None

    def unpack(self, directory: str) -> None:
        """Write all files into a directory; raises as :func:`extract`."""
        with self._open() as tar:
            extract(tar, Path(directory))

    def _open(self) -> tarfile.TarFile:
        return tarfile.open(fileobj=io.BytesIO(self.content))


def extract(tar: tarfile.TarFile, directory: Path) -> None:
    """Write the files and directories of an archive; nothing of their owners and rights.

    Not ``extractall(filter="data")``, which Python 3.10.0 to 3.10.11 and 3.11.0 to 3.11.3 do not have.

    Parameters
    ----------
    tar : tarfile.TarFile
        A packed SavedModel, open for reading.
    directory : Path
        An empty directory, or one that is to be made.

    Raises
    ------
    ModelError
        If a member is neither file nor directory, or is named to lie outside of `directory`.
    tarfile.TarError
        If the archive is damaged.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for member in tar:
        path = directory / _relative_path(member)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        source = tar.extractfile(member)
        assert source is not None  # since it is a file
        with source, open(path, "xb") as target:
            shutil.copyfileobj(source, target)


def _relative_path(member: tarfile.TarInfo) -> PurePosixPath:
    """Where a member goes; there are no links among them, so its name decides."""
    path = PurePosixPath(member.name)
    if not (member.isfile() or member.isdir()) or path.is_absolute() or ".." in path.parts:
        from tfos_ml.errors import ModelError  # which imports pyspark, and a cache's keeper needs none

        raise ModelError(
            f"The packed model holds {member.name!r}, and a SavedModel consists of only files and directories within "
            "it. Use the SavedModel as TensorFlow or Keras has exported it."
        )
    return path
