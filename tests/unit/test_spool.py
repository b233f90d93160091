import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tfos_ml.data import spool
from tfos_ml.data.memory_budget import MemoryBudget
from tfos_ml.data.spool import NoRoomError, SpoolDirectories, SpoolWriter, read_chunk

PLENTY = 1 << 50


@pytest.fixture
def directories(tmp_path, monkeypatch):
    """A spool whose shared memory has all the room in the world."""
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(spool, "free_memory", lambda: PLENTY)
    return SpoolDirectories(tmp_path / "memory", tmp_path / "disk")


@pytest.fixture
def published():
    return []


@pytest.fixture
def writer(directories, published):
    return SpoolWriter(directories, "train", published.append)


def batch(*numbers):
    texts = pa.array([f"row {n} é" for n in numbers], pa.string())
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "t": texts})


def numbers_in(chunks):
    return [n for c in chunks for b in read_chunk(c.path) for n in b.column("n").to_pylist()]


def test_rows_come_back_as_they_were_written(writer, published):
    writer.write(batch(1, 2))
    writer.write(batch(3))
    writer.flush()
    (chunk,) = published
    (read,) = read_chunk(chunk.path)
    assert read.equals(batch(1, 2, 3))
    assert (chunk.rows, chunk.size, chunk.on_disk) == (3, Path(chunk.path).stat().st_size, False)


def test_a_chunk_is_published_as_soon_as_it_is_large_enough(writer, published, monkeypatch):
    monkeypatch.setattr(spool, "CHUNK_BYTES", 3 * batch(0).nbytes)
    for number in range(7):
        writer.write(batch(number))
    assert [c.rows for c in published] == [3, 3]
    writer.flush()
    assert [c.rows for c in published] == [3, 3, 1]
    assert numbers_in(published) == list(range(7))
    assert len({c.path for c in published}) == 3


def test_chunks_go_to_disk_when_memory_is_full(writer, published, directories, monkeypatch):
    writer.write(batch(1))
    writer.flush()
    monkeypatch.setattr(spool, "free_memory", lambda: 0)
    writer.write(batch(2))
    writer.flush()
    assert [c.on_disk for c in published] == [False, True]
    assert [Path(c.path).parent for c in published] == [directories.memory, directories.disk]
    assert numbers_in(published) == [1, 2]


OWNER = """
import sys, pathlib
from tfos_ml.data import spool
made = spool.create(pathlib.Path(sys.argv[1]))
(made.disk / "chunk").write_text("rows")
print(*made.all(), sep="\\n", flush=True)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path):
    """A living process that owns a spool, and the directories of that spool."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        theirs = [Path(line) for line in iter(lambda: process.stdout.readline().strip(), "ready")]
        yield process, theirs
        process.kill()
        spool.remove(map(str, theirs))


def test_sweep_removes_the_spools_of_dead_owners_only(tmp_path, owner):
    process, theirs = owner
    mine = spool.create(tmp_path)
    unrelated = tmp_path / "unrelated"
    unrelated.mkdir()
    try:
        assert spool.sweep(tmp_path) == []
        assert all(d.is_dir() for d in theirs)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert str(theirs[-1]) in spool.sweep(tmp_path)
        assert not any(d.exists() for d in theirs)
        assert all(Path(d).is_dir() for d in mine.all())
        assert unrelated.is_dir()
        assert spool.sweep(tmp_path) == []
    finally:
        spool.remove([*mine.all(), *map(str, theirs)])


def test_sweep_removes_temporary_directories_of_a_process_that_was_killed(tmp_path):
    program = (
        "import os, tempfile; from tfos_ml.common.directories import owned_prefix;"
        "made = tempfile.TemporaryDirectory(prefix=owned_prefix('temporary')); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert spool.sweep(tmp_path) == [str(left)]
    assert not left.exists()


def test_sweep_knows_a_dead_owner_whose_pid_was_used_again(tmp_path):
    mine = spool.create(tmp_path)
    try:
        prefix, pid, started, rest = mine.disk.name.rsplit("-", 3)
        assert pid == str(os.getpid())
        older = mine.disk.rename(tmp_path / f"{prefix}-{pid}-{int(started, 16) ^ 1:08x}-{rest}")
        assert str(older) in spool.sweep(tmp_path)
        assert not older.exists()
    finally:
        spool.remove(mine.all())


@pytest.mark.parametrize("name", ["tfos_ml-spool-{host}-x", "tfos_ml-spool-{host}-1-2-3", "tfos_ml-spool-", "{dead}"])
@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_sweep_leaves_alone_what_another_user_has_made(tmp_path, name):
    mine = spool.create(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    prefix, host, _, started, rest = mine.disk.name.rsplit("-", 4)
    name = name.format(host=host, dead=f"{prefix}-{host}-4194303-{started}-{rest}")
    try:
        subprocess.run(["mkdir", name], cwd=shared, user=65534, group=65534, extra_groups=[], check=True)
        assert spool.sweep(shared) == []
        assert (shared / name).is_dir()
        assert (shared / name).stat().st_uid == 65534
    finally:
        spool.remove(mine.all())


class TestFullFilesystems:
    @staticmethod
    def use_up_inodes(directory):
        for number in range(100):
            try:
                (directory / str(number)).touch()
            except OSError:
                return
        raise AssertionError("there are more inodes than expected")

    @pytest.mark.parametrize("mib", [64, 1024])
    def test_rows_are_kept_in_a_small_volume_of_shared_memory(self, small, tmp_path, monkeypatch, mib):
        """Red before: with two nodes and 64 MiB each could keep less than 5 MiB there."""
        monkeypatch.setattr(spool, "SHARED_MEMORY", small(f"size={mib}m"))
        assert spool.free_volume() >= 7 / 8 * (mib << 20) - (1 << 16)
        made = spool.create(tmp_path, budget=MemoryBudget.of_node(None).among(2, None).shared)
        block = pa.py_buffer(bytes(4 << 20))
        chunks = [spool.write_block(made, f"block-{i}", block, 1) for i in range(15)]
        spool.remove(made.all())
        assert [chunk.on_disk for chunk in chunks] == [mib == 64 and 4 * i >= 7 / 8 * mib - 4 for i in range(15)]

    def test_without_inodes_for_a_spool_in_shared_memory_there_is_the_disk(self, small, tmp_path, monkeypatch):
        memory = small("size=64m,nr_inodes=4")
        self.use_up_inodes(memory)
        monkeypatch.setattr(spool, "SHARED_MEMORY", memory)
        made = spool.create(tmp_path)
        assert (made.memory, made.disk.parent) == (None, tmp_path)
        spool.remove(made.all())

    @pytest.fixture
    def in_small_memory(self, small, tmp_path, monkeypatch, published):
        """A writer whose shared memory, however much is said to be free, is a small filesystem."""
        monkeypatch.setattr(spool, "free_memory", lambda: PLENTY)

        def make(options):
            (tmp_path / "disk").mkdir()
            self.directories = SpoolDirectories(small(options), tmp_path / "disk")
            return SpoolWriter(self.directories, "train", published.append)

        return make

    def test_shared_memory_that_fills_up_in_mid_write_leaves_no_part_of_a_chunk(self, in_small_memory, published):
        writer = in_small_memory("size=1m")
        rows = batch(*range(100_000))
        assert rows.nbytes > 1 << 20
        writer.write(rows)
        writer.flush()
        assert [c.on_disk for c in published] == [True]
        assert numbers_in(published) == list(range(100_000))
        assert list(self.directories.memory.iterdir()) == []

    def test_a_disk_that_fills_up_in_mid_write_is_named(self, small, published, monkeypatch):
        disk = small("size=1m")
        monkeypatch.setattr(spool, "DISK_RESERVE", -PLENTY)
        writer = SpoolWriter(SpoolDirectories(None, disk), "train", published.append)
        with pytest.raises(NoRoomError, match=rf"{disk} \(No space left on device\).*spark\.local\.dir"):
            writer.write(batch(*range(100_000)))
        assert published == []
        assert list(disk.iterdir()) == []
