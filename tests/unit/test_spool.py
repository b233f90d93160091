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
def published():
    return []


def batch(*numbers):
    texts = pa.array([f"row {n} é" for n in numbers], pa.string())
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "t": texts})


def numbers_in(chunks):
    return [n for c in chunks for b in read_chunk(c.path) for n in b.column("n").to_pylist()]


def test_chunks_are_published_when_they_are_large_enough_and_go_to_disk_when_memory_is_full(
    tmp_path, published, monkeypatch
):
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    writer = SpoolWriter(SpoolDirectories(tmp_path / "memory", tmp_path / "disk"), "train", published.append)
    monkeypatch.setattr(spool, "CHUNK_BYTES", 3 * batch(0).nbytes)
    for number in range(7):
        monkeypatch.setattr(spool, "free_memory", lambda number=number: PLENTY if number < 3 else 0)
        writer.write(batch(number))
    assert [c.rows for c in published] == [3, 3]
    writer.flush()
    assert [c.on_disk for c in published] == [False, True, True]
    assert [Path(c.path).parent.name for c in published] == ["memory", "disk", "disk"]
    assert [b.to_pydict() for c in published for b in read_chunk(c.path)] == [
        batch(*numbers).to_pydict() for numbers in ((0, 1, 2), (3, 4, 5), (6,))
    ]


def test_sweep_removes_what_a_killed_process_has_left_and_nothing_else(tmp_path):
    program = (
        "import os, tempfile; from tfos_ml.common.directories import owned_prefix; from tfos_ml.data import spool;"
        "made = spool.create(); other = tempfile.TemporaryDirectory(prefix=owned_prefix('temporary'));"
        "print(*made.all(), other.name, sep='\\n', flush=True); os.kill(os.getpid(), 9)"
    )
    (tmp_path / "unrelated").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path), "SPARK_LOCAL_DIRS": str(tmp_path)}
    killed = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    left = killed.stdout.read().splitlines()
    mine = spool.create(tmp_path)
    try:
        assert set(left[-2:]) <= set(spool.sweep(tmp_path))  # others may have found what is in shared memory
        assert not any(Path(directory).exists() for directory in left)
        assert all(Path(d).is_dir() for d in mine.all())
        assert (tmp_path / "unrelated").is_dir()
    finally:
        assert killed.wait() == -signal.SIGKILL
        spool.remove([*mine.all(), *left])


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


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_sweep_leaves_alone_what_another_user_has_made(tmp_path):
    mine = spool.create(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    prefix, host, _, started, rest = mine.disk.name.rsplit("-", 4)
    name = f"{prefix}-{host}-4194303-{started}-{rest}"  # of a process that is dead
    try:
        subprocess.run(["mkdir", name], cwd=shared, user=65534, group=65534, extra_groups=[], check=True)
        assert str(shared / name) not in spool.sweep(shared)
        assert (shared / name).is_dir()
        assert (shared / name).stat().st_uid == 65534
    finally:
        spool.remove(mine.all())


class TestFullFilesystems:
    def test_rows_are_kept_in_a_small_volume_of_shared_memory(self, small, tmp_path, monkeypatch):
        """Red before: with two nodes and 64 MiB each could keep less than 5 MiB there."""
        monkeypatch.setattr(spool, "SHARED_MEMORY", small("size=64m"))
        made = spool.create(tmp_path, budget=MemoryBudget.of_node(None).among(2, None).shared)
        block = pa.py_buffer(bytes(4 << 20))
        chunks = [spool.write_block(made, f"block-{i}", block, 1) for i in range(15)]
        spool.remove(made.all())
        assert [chunk.on_disk for chunk in chunks] == [4 * i >= 7 / 8 * 64 - 4 for i in range(15)]

    def test_shared_memory_that_fills_up_in_mid_write_leaves_no_part_of_a_chunk(
        self, small, tmp_path, published, monkeypatch
    ):
        monkeypatch.setattr(spool, "free_memory", lambda: PLENTY)
        monkeypatch.setattr(spool, "free_volume", lambda: PLENTY)
        memory = small("size=1m")
        writer = SpoolWriter(SpoolDirectories(memory, tmp_path), "train", published.append)
        writer.write(batch(*range(100_000)))
        writer.flush()
        assert [c.on_disk for c in published] == [True]
        assert numbers_in(published) == list(range(100_000))
        assert list(memory.iterdir()) == []

    def test_a_disk_that_fills_up_in_mid_write_is_named(self, small, published, monkeypatch):
        disk = small("size=1m")
        monkeypatch.setattr(spool, "DISK_RESERVE", -PLENTY)
        writer = SpoolWriter(SpoolDirectories(None, disk), "train", published.append)
        with pytest.raises(NoRoomError, match=rf"{disk} \(No space left on device\).*spark\.local\.dir"):
            writer.write(batch(*range(100_000)))
        assert published == []
        assert list(disk.iterdir()) == []
