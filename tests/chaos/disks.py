"""A small disk of its own for what a run writes, which can be filled and frozen; needs root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

MIB = 1 << 20
SIZE = 24 * MIB


class Disk:
    """An ext4 filesystem in a file, at ``directory``; unmount it with :meth:`close`."""

    def __init__(self, directory: Path):
        self.directory = directory
        directory.mkdir()
        self._image = directory.with_suffix(".image")
        with self._image.open("wb") as file:
            file.truncate(SIZE)
        run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        run("mount", "-o", "loop", str(self._image), str(directory))
        self._frozen = False

    def fill(self) -> None:
        """Take all space that is left."""
        with open(self.directory / ".filled", "wb", buffering=0) as file:
            size = MIB
            while size:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    size //= 2

    def freeze(self) -> None:
        """Have all writers wait."""
        run("fsfreeze", "-f", str(self.directory))
        self._frozen = True

    def heal(self) -> None:
        """Undo both."""
        if self._frozen:
            run("fsfreeze", "-u", str(self.directory))
            self._frozen = False
        (self.directory / ".filled").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it, also if it is still in use."""
        self.heal()
        run("umount", "-l", str(self.directory))
        self._image.unlink()


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def can_mount() -> bool:
    """Whether there can be such disks here."""
    return os.geteuid() == 0 and os.path.exists("/dev/loop-control")
