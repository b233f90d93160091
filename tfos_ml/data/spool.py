"""The spool: an append-only log of Arrow IPC files, both the queue and the epoch cache.

The node's supervisor writes chunks of about 32 MiB to shared memory (``/dev/shm``), within the node's budget
(:mod:`tfos_ml.data.memory_budget`) and as long as the host and the container have space. The TensorFlow process maps
them, so rows are neither copied nor pickled. Further chunks go to Spark's local disk, compressed, in small record
batches that are read one by one. A spool is a pair of directories that belong to a process
(:mod:`tfos_ml.common.directories`); any process may remove one whose owner has died.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from tfos_ml.common import directories
from tfos_ml.common.cgroup import memory_headroom
from tfos_ml.errors import SpoolFullError

CHUNK_BYTES = 32 << 20
FIRST_CHUNK_BYTES = 1 << 20  # chunks double from there, so that the first rows of a slow input do not wait for more
LARGE_BATCH_BYTES = 1 << 20  # of batches that are written as they came; smaller ones are put together
DISK_BATCH_BYTES = 256 << 10
DISK_CODEC = "lz4"
"""Of Arrow IPC. On one core LZ4 reads numbers of any kind at 1.9 to 3.5 GB/s, faster than disks; zstd, at 0.9, not."""
MEMORY_RESERVE = 1 << 30  # of the host and of the container
VOLUME_SHARE = 8  # of the volume of shared memory, one part in so many is left to others, at most that reserve
DISK_RESERVE = 256 << 20
SHARED_MEMORY = Path("/dev/shm")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class NoRoomError(OSError):
    """Neither shared memory nor the disk has space."""


@dataclass(frozen=True)
class Chunk:
    """One file of a spool."""

    path: str
    rows: int
    size: int  # in bytes
    on_disk: bool  # rather than in shared memory
    is_kept: bool = False  # whether it will be read more than once
    inference: int | None = None  # number of the call whose rows it holds, if they are to be answered
    nbytes: int = 0  # of its rows in memory


@dataclass
class SpoolDirectories:
    """The directories of one spool: ``memory`` in shared memory if there is any, ``disk`` always."""

    memory: Path | None
    disk: Path
    budget: int | None = None  # bytes that ``memory`` may hold; None for what is free. Less when the host is shared

    def all(self) -> list[str]:
        """Both, as strings."""
        return [str(d) for d in (self.memory, self.disk) if d is not None]

    def memory_for(self, size: int) -> Path | None:
        """The directory in shared memory if it has space for `size` more bytes."""
        if self.memory is None or not _has_inodes(self.memory) or min(free_memory(), free_volume()) <= size:
            return None
        if self.budget is not None and _held(self.memory) + size > self.budget:
            return None
        return self.memory

    def disk_for(self, size: int) -> Path:
        """The directory on disk; ``NoRoomError`` if it has no space for `size` more bytes."""
        free = shutil.disk_usage(self.disk).free
        if free <= size + DISK_RESERVE:
            raise NoRoomError(
                f"no room for {size / 2**20:,.0f} MiB more rows: {self.disk} has {free / 2**20:,.0f} MiB free and "
                f"{DISK_RESERVE / 2**20:,.0f} MiB are kept in reserve. Give spark.local.dir a larger disk."
            )
        return self.disk


def free_memory() -> int:
    """Bytes of memory that rows may still take: what is free of the host and the container, without the reserve."""
    available, headroom = psutil.virtual_memory().available, memory_headroom()
    return max(0, (available if headroom is None else min(available, headroom)) - MEMORY_RESERVE)


def free_volume() -> int:
    """Bytes that the volume of shared memory has room for, without the share of others."""
    if not SHARED_MEMORY.is_dir():
        return 0
    volume = shutil.disk_usage(SHARED_MEMORY)
    return max(0, volume.free - min(MEMORY_RESERVE, volume.total // VOLUME_SHARE))


def _held(directory: Path) -> int:
    """Bytes of the files of a directory, without files that are deleted meanwhile."""
    held = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                held += entry.stat().st_size
    return held


def _has_inodes(directory: Path) -> bool:
    """Whether the filesystem has free inodes; some filesystems do not count them, and report 0."""
    status = os.statvfs(directory)
    return status.f_files == 0 or status.f_favail > 0


@contextlib.contextmanager
def room_in(directory: Path, setting: str = "spark.local.dir") -> Iterator[None]:
    """Turn the errors of a full disk in the block into a ``NoRoomError`` that names the directory and the setting.

    A disk is full without free bytes, inodes or quota, or if nothing can be written at all.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise NoRoomError(_full(directory, setting, error)) from error


@contextlib.contextmanager
def full_disk_as_error(what: str, directory: str) -> Iterator[None]:
    """Turn TensorFlow's errors about a full disk in the block, recognized by their text, into ``SpoolFullError``."""
    try:
        with room_in(Path(directory)):
            try:
                yield
            except Exception as error:
                full = [number for number in _FULL if os.strerror(number) in str(error)]
                if full:
                    raise OSError(full[0], str(error)) from error
                raise
    except NoRoomError as error:
        raise SpoolFullError(f"{what} has no room on the node: {error}") from None


def _full(directory: Path, setting: str, error: OSError) -> str:
    try:
        status = os.statvfs(directory)
    except OSError:
        left = "has gone"
    else:
        inodes = f"{status.f_favail:,}" if status.f_files else "no limit of"
        left = f"has {status.f_bavail * status.f_frsize / 2**20:,.0f} MiB and {inodes} inodes free"
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"nothing more can be written to {directory} ({reason}): it {left}. Give {setting} another directory."


def disk_root() -> Path:
    """Spark's local directory on this host."""
    return Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0])


def create(disk: Path | None = None, budget: int | None = None) -> SpoolDirectories:
    """Create the directories of a new spool, owned by this process; ``NoRoomError`` if the disk allows none."""
    on_disk = _create("spool", disk or disk_root(), "spark.local.dir")
    return SpoolDirectories(_create_in_memory(), on_disk, budget)


def _create_in_memory() -> Path | None:
    with contextlib.suppress(OSError):  # the disk will do
        if os.access(SHARED_MEMORY, os.W_OK) and _has_inodes(SHARED_MEMORY):
            return directories.create_owned("spool", SHARED_MEMORY)
    return None


def create_scratch() -> str:
    """Create a directory for temporary files of a node, owned by this process; its path is short, for sockets."""
    return str(_create("tmp", Path(tempfile.gettempdir()), "TMPDIR"))


def _create(kind: str, root: Path, setting: str) -> Path:
    try:
        return directories.create_owned(kind, root)
    except OSError as error:  # whatever it is, another directory is needed
        raise NoRoomError(_full(root, setting, error)) from error


def remove(directories: Iterable[str]) -> None:
    """Delete the directories of a spool; ignores missing ones."""
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def sweep(disk: Path | None = None) -> list[str]:
    """Remove spools and scratch directories of this user whose owner is dead, and return their paths."""
    return directories.sweep([SHARED_MEMORY, disk or disk_root(), Path(tempfile.gettempdir())])


class SpoolWriter:
    """Gathers record batches into chunks, whose file names begin with `name`, and publishes each complete chunk."""

    def __init__(self, directories: SpoolDirectories, name: str, publish: Callable[[Chunk], None]):
        self._directories = directories
        self._name = name
        self._publish = publish
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._chunks = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch; publishes a chunk when there is enough for one."""
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= min(CHUNK_BYTES, FIRST_CHUNK_BYTES << min(self._chunks, 32)):
            self.flush()

    def flush(self) -> None:
        """Publish what is left as a last, smaller chunk."""
        table = pa.Table.from_batches(self._pending) if self._pending else None
        if table is not None and table.num_rows:
            if table.nbytes < LARGE_BATCH_BYTES * len(self._pending):
                table = table.combine_chunks()
            name = f"{self._name}-{self._chunks:06d}.arrow"
            self._chunks += 1
            self._publish(_store(self._directories, name, table.num_rows, table.nbytes, partial(_write_table, table)))
        self._pending, self._pending_bytes = [], 0


def _write_table(table: pa.Table, sink: Any, on_disk: bool) -> None:
    codec, rows = None, None
    if on_disk:
        codec, rows = DISK_CODEC, max(1, DISK_BATCH_BYTES * table.num_rows // max(1, table.nbytes))
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_block(directories: SpoolDirectories, name: str, block: pa.Buffer, rows: int) -> Chunk:
    """Write a complete Arrow IPC file as a chunk."""
    return _store(directories, f"{name}.arrow", rows, block.size, lambda sink, on_disk: sink.write(block))


def _store(
    directories: SpoolDirectories, name: str, rows: int, size: int, write: Callable[[Any, bool], object]
) -> Chunk:
    """Write a chunk where there is space for `size` bytes; raises :class:`NoRoomError`."""
    memory = directories.memory_for(size)
    if memory is not None:
        with contextlib.suppress(OSError):  # others may have been faster; the disk will do
            return _written(memory / name, rows, size, False, write)
    return _written(directories.disk_for(size) / name, rows, size, True, write)


def _written(path: Path, rows: int, size: int, on_disk: bool, write: Callable[[Any, bool], object]) -> Chunk:
    try:
        with room_in(path.parent), pa.OSFile(str(path), "wb") as sink:
            write(sink, on_disk)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Chunk(str(path), rows, path.stat().st_size, on_disk, nbytes=size)


def read_chunk(path: str) -> Iterator[pa.RecordBatch]:
    """The batches of a chunk, mapped into memory; without a copy unless they are compressed.

    They stay valid after the file is deleted, until the last of them is dropped.
    """
    with pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)
