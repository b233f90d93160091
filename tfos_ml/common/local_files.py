"""Large content in files of this process, never whole in its memory: packed models, and files of saved stages."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, Union

from tfos_ml.common.directories import TemporaryDirectory

PART_BYTES = 1 << 20


@dataclass(frozen=True)
class LocalFile:
    """A file that is not changed any more, and is deleted with this object."""

    path: Path
    size: int
    digest: str  # SHA-256 of the content, in hexadecimal digits
    _directory: TemporaryDirectory

    @classmethod
    def of(cls, content: bytes) -> LocalFile:
        """A file with this content."""
        writer = FileWriter()
        writer.write(content)
        return writer.finish()

    def read(self) -> bytes:
        """The content; for small files."""
        return self.path.read_bytes()

    def link(self, path: Path) -> None:
        """Make the content available at another path, unless it is there; it stays there without this object."""
        if path.exists():
            return
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="tfos_ml-") as directory:
            other = os.path.join(directory, path.name)
            try:
                os.link(self.path, other)
            except OSError:  # another file system, or one without links
                shutil.copyfile(self.path, other)
            os.replace(other, path)

    def __reduce__(self) -> tuple[Callable[[bytes], LocalFile], tuple[bytes]]:
        return LocalFile.of, (self.read(),)  # another process has no such file


class FileWriter:
    """Writes a :class:`LocalFile`; what was written is deleted with this object, unless it is finished."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory("model")
        self._path = self._directory.path / "content"
        self._file = open(self._path, "wb")  # noqa: SIM115  (closed by finish)
        self._hash = hashlib.sha256()

    def write(self, part: bytes) -> int:
        """Append a part; returns its size."""
        self._hash.update(part)
        return self._file.write(part)

    def tell(self) -> int:
        """How much has been written, in bytes."""
        return self._file.tell()

    def finish(self) -> LocalFile:
        size = self.tell()
        self._file.close()
        directory = self._directory
        del self._directory  # a TarFile, which refers to itself, may hold this object for long
        return LocalFile(self._path, size, self._hash.hexdigest(), directory)


Content: TypeAlias = Union[bytes, LocalFile]  # noqa: UP007  (evaluated by Python 3.10)
"""Small content is in memory, large content in a file."""


def bytes_of(content: Content) -> bytes:
    """All of the content."""
    return content if isinstance(content, bytes) else content.read()


def file_of(content: Content) -> LocalFile:
    """A file with the content."""
    return LocalFile.of(content) if isinstance(content, bytes) else content


def parts_of(content: Content | Path) -> Iterator[bytes]:
    """The content, or that of a file, ``PART_BYTES`` at a time; at least one part."""
    if isinstance(content, bytes):
        yield from (content[start : start + PART_BYTES] for start in range(0, max(1, len(content)), PART_BYTES))
        return
    with open(content.path if isinstance(content, LocalFile) else content, "rb") as file:
        yield file.read(PART_BYTES)
        while part := file.read(PART_BYTES):
            yield part
