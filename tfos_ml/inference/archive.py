"""A SavedModel as one tar file."""

from __future__ import annotations

import hashlib
import io
import tarfile
from functools import cached_property


class Archive:
    """A packed SavedModel in memory; copies of a ``TFModel`` share it.

    Parameters
    ----------
    content : bytes
        The tar file, as ``tfos_ml.cluster.export.pack`` makes it.
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
        """Write all files into a directory."""
        with self._open() as tar:
            tar.extractall(directory, filter="data")

    def _open(self) -> tarfile.TarFile:
        return tarfile.open(fileobj=io.BytesIO(self.content))
