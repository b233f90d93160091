"""The spool: an append-only log of Arrow IPC files, both the queue and the epoch cache.

The node's supervisor writes chunks of about 32 MiB; the TensorFlow process maps them into
memory, so rows are neither copied nor pickled on the way. Chunks live in shared memory
while there is room (``/dev/shm``, within the container's memory limit) and on Spark's
local disk beyond it. A spool is a pair of directories named after their owner, so that
whoever finds one whose owner has died may remove it.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa

CHUNK_BYTES = 32 << 20
MEMORY_RESERVE = 1 << 30
DISK_RESERVE = 256 << 20
SHARED_MEMORY = Path("/dev/shm")
PREFIX = "tfos_ml-spool-"
_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


class NoRoomError(OSError):
    """Neither shared memory nor the disk has room for another chunk."""


@dataclass(frozen=True)
class Chunk:
    """One file of a spool.

    Attributes
    ----------
    path : str
        Where it is.
    rows, size : int
        Its rows, and its size in bytes.
    on_disk : bool
        Whether it is outside shared memory.
    is_kept : bool
        Whether it will be read more than once.
    exchange : int or None
        Number of the exchange whose rows it holds, if they are to be answered.
    """

    path: str
    rows: int
    size: int
    on_disk: bool
    is_kept: bool = False
    exchange: int | None = None


@dataclass(frozen=True)
class SpoolDirectories:
    """The directories of one spool: ``memory`` in shared memory if there is any, ``disk`` always."""

    memory: Path | None
    disk: Path

    def all(self) -> list[str]:
        """Both, as strings."""
        return [str(d) for d in (self.memory, self.disk) if d is not None]

    def place(self, size: int) -> Path:
        """The directory that has room for `size` more bytes.

        Raises
        ------
        NoRoomError
            If neither has.
        """
        if self.memory is not None and free_memory() > size + MEMORY_RESERVE:
            return self.memory
        free = shutil.disk_usage(self.disk).free
        if free > size + DISK_RESERVE:
            return self.disk
        raise NoRoomError(
            f"no room for {size / 2**20:,.0f} MiB more rows: {self.disk} has {free / 2**20:,.0f} MiB free and "
            f"{DISK_RESERVE / 2**20:,.0f} MiB are kept in reserve. Give spark.local.dir a larger disk."
        )


def free_memory() -> int:
    """Bytes that may still be put into shared memory, given the host's and the container's limits."""
    if not SHARED_MEMORY.is_dir():
        return 0
    room = min(shutil.disk_usage(SHARED_MEMORY).free, psutil.virtual_memory().available)
    for limit_file, usage_file in _CGROUP_FILES:
        try:
            limit, usage = Path(limit_file).read_text().strip(), Path(usage_file).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():
            room = min(room, int(limit) - int(usage))
    return room


def disk_root() -> Path:
    """Spark's local directory on this host."""
    return Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0])


def _host_prefix() -> str:
    """Pids mean something only within one host and one pid namespace."""
    namespace = f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"
    return f"{PREFIX}{zlib.crc32(namespace.encode()):08x}-"


def owner_name() -> str:
    """Names this process so that its death can be told from its pid being used again."""
    me = psutil.Process()
    return f"{_host_prefix()}{me.pid}-{int(me.create_time())}-"


def create(disk: Path | None = None) -> SpoolDirectories:
    """Make the directories of a new spool, owned by this process."""
    roots = [SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None, disk or disk_root()]
    memory, on_disk = (root and Path(tempfile.mkdtemp(prefix=owner_name(), dir=root)) for root in roots)
    assert on_disk is not None
    return SpoolDirectories(memory, on_disk)


def remove(directories: Iterable[str]) -> None:
    """Delete the directories of a spool; those that are gone already are fine."""
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def sweep(disk: Path | None = None) -> list[str]:
    """Remove the spools whose owner is dead, and return their paths."""
    roots = (SHARED_MEMORY, disk or disk_root())
    found = [path for root in roots for path in root.glob(f"{_host_prefix()}*")]
    dead = [str(p) for p in found if not _owner_lives(p.name)]
    remove(dead)
    return dead


def _owner_lives(name: str) -> bool:
    pid, started = name.removeprefix(_host_prefix()).split("-")[:2]
    try:
        return abs(psutil.Process(int(pid)).create_time() - int(started)) < 2  # the clock may be adjusted
    except psutil.NoSuchProcess:
        return False


class SpoolWriter:
    """Gathers record batches into chunks and publishes each once it is whole.

    Parameters
    ----------
    directories : SpoolDirectories
        Where to write.
    name : str
        Prefix of the chunks' file names.
    publish : callable
        Called with each finished :class:`Chunk`.
    """

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
        if self._pending_bytes >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Publish what is left as a last, smaller chunk."""
        table = pa.Table.from_batches(self._pending) if self._pending else None
        if table is not None and table.num_rows:
            self._publish(self._write(table.combine_chunks()))
        self._pending, self._pending_bytes = [], 0

    def _write(self, table: pa.Table) -> Chunk:
        directory = self._directories.place(table.nbytes)
        path = directory / f"{self._name}-{self._chunks:06d}.arrow"
        self._chunks += 1
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return Chunk(str(path), table.num_rows, path.stat().st_size, directory is self._directories.disk)


def write_block(directories: SpoolDirectories, name: str, block: pa.Buffer, rows: int) -> Chunk:
    """Write an Arrow IPC file that is whole already as a chunk."""
    directory = directories.place(block.size)
    path = directory / f"{name}.arrow"
    with pa.OSFile(str(path), "wb") as sink:
        sink.write(block)
    return Chunk(str(path), rows, block.size, directory is directories.disk)


def read_chunk(path: str) -> Iterator[pa.RecordBatch]:
    """The batches of a chunk, mapped into memory without a copy.

    They stay valid after the file is deleted, until the last of them is dropped.
    """
    with pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)
