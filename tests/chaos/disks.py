"""A small disk and shared memory of its own for what a run writes, which can be filled and frozen; needs root."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

SIZE = 24 << 20
CLONE_NEWNS = 0x20000  # of unshare(2)


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
        fill(self.directory / ".filled")

    def freeze(self) -> None:
        """Have all writers wait, if they do not yet."""
        if not self._frozen:
            run("fsfreeze", "-f", str(self.directory))
        self._frozen = True

    def heal(self) -> None:
        if self._frozen:
            run("fsfreeze", "-u", str(self.directory))
            self._frozen = False
        (self.directory / ".filled").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it, also if it is still in use."""
        self.heal()
        run("umount", "-l", str(self.directory))
        self._image.unlink()


class SharedMemory:
    """``/dev/shm`` as only this process and its children have it, once it was mounted; call it before threads start."""

    DIRECTORY = Path("/dev/shm")
    SIZE = "1200m"  # of which tfos_ml leaves 1 GiB to others
    is_own = False

    @classmethod
    def mount(cls) -> None:
        """Leave the mounts of all others alone from now on, and mount a small one."""
        if ctypes.CDLL(None).unshare(CLONE_NEWNS):
            return
        run("mount", "--make-rprivate", "/")
        run("mount", "--make-rshared", "/")  # with namespaces of children
        run("mount", "-t", "tmpfs", "-o", f"size={cls.SIZE}", "tmpfs", str(cls.DIRECTORY))
        cls.is_own = True

    @classmethod
    def fill(cls) -> None:
        fill(cls.DIRECTORY / ".filled")

    @classmethod
    def heal(cls) -> None:
        (cls.DIRECTORY / ".filled").unlink(missing_ok=True)


def fill(path: Path) -> None:
    """Take all space that a filesystem has left."""
    with path.open("wb") as file:
        end, size = 0, shutil.disk_usage(path.parent).free
        while size:
            try:
                os.posix_fallocate(file.fileno(), end, size)
                end += size
            except OSError:
                size //= 2


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def can_mount() -> bool:
    """Whether there can be such disks here."""
    return os.geteuid() == 0 and os.path.exists("/dev/loop-control")
