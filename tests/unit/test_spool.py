import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tfos_ml.feed import spool
from tfos_ml.feed.spool import NoRoomError, SpoolDirectories, SpoolWriter, read_chunk

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


def test_sliced_batches_are_written_without_the_rest(writer, published):
    writer.write(batch(*range(1000)).slice(500, 3))
    writer.flush()
    assert numbers_in(published) == [500, 501, 502]
    assert published[0].size < 4000


def test_nothing_is_published_before_there_is_a_chunk(writer, published):
    writer.write(batch(1, 2))
    assert published == []


@pytest.mark.parametrize("batches", [[], [batch()], [batch(), batch()]], ids=["none", "empty", "two empty"])
def test_no_rows_make_no_chunk(writer, published, directories, batches):
    for one in batches:
        writer.write(one)
    writer.flush()
    assert published == []
    assert list(directories.memory.iterdir()) == []


def test_empty_batches_among_others_do_no_harm(writer, published):
    for one in (batch(), batch(1), batch(), batch(2)):
        writer.write(one)
    writer.flush()
    assert numbers_in(published) == [1, 2]


def test_a_chunk_is_published_as_soon_as_it_is_large_enough(writer, published, monkeypatch):
    monkeypatch.setattr(spool, "CHUNK_BYTES", 3 * batch(0).nbytes)
    for number in range(7):
        writer.write(batch(number))
    assert [c.rows for c in published] == [3, 3]
    writer.flush()
    assert [c.rows for c in published] == [3, 3, 1]
    assert numbers_in(published) == list(range(7))
    assert len({c.path for c in published}) == 3


def test_two_writers_share_a_spool(directories):
    train, validation = [], []
    writers = [SpoolWriter(directories, "train", train.append), SpoolWriter(directories, "test", validation.append)]
    for number, one in enumerate(writers):
        one.write(batch(number))
        one.flush()
    assert (numbers_in(train), numbers_in(validation)) == ([0], [1])


def test_batches_outlive_the_deletion_of_their_chunk(writer, published):
    writer.write(batch(1, 2))
    writer.flush()
    batches = list(read_chunk(published[0].path))
    Path(published[0].path).unlink()
    assert batches[0].column("n").to_pylist() == [1, 2]


def test_chunks_go_to_disk_when_memory_is_full(writer, published, directories, monkeypatch):
    writer.write(batch(1))
    writer.flush()
    monkeypatch.setattr(spool, "free_memory", lambda: spool.MEMORY_RESERVE)
    writer.write(batch(2))
    writer.flush()
    assert [c.on_disk for c in published] == [False, True]
    assert [Path(c.path).parent for c in published] == [directories.memory, directories.disk]
    assert numbers_in(published) == [1, 2]


def test_without_shared_memory_all_chunks_go_to_disk(directories, published):
    writer = SpoolWriter(SpoolDirectories(None, directories.disk), "train", published.append)
    writer.write(batch(1))
    writer.flush()
    assert published[0].on_disk
    assert SpoolDirectories(None, directories.disk).all() == [str(directories.disk)]


def test_no_room_anywhere_is_an_error_that_says_how_much(writer, published, directories, monkeypatch):
    monkeypatch.setattr(spool, "free_memory", lambda: 0)
    monkeypatch.setattr(spool, "DISK_RESERVE", PLENTY)
    writer.write(batch(1))
    with pytest.raises(NoRoomError, match=rf"{directories.disk} has .* MiB free .* spark\.local\.dir"):
        writer.flush()
    assert published == []


def test_free_memory_counts_bytes():
    assert 0 <= spool.free_memory() < 1 << 50


def test_spool_is_created_and_removed(tmp_path):
    made = spool.create(tmp_path)
    assert made.disk.parent == tmp_path
    assert all(Path(d).is_dir() for d in made.all())
    spool.remove(made.all())
    assert not any(Path(d).exists() for d in made.all())
    spool.remove(made.all())  # again is fine


def test_spark_local_dirs_say_where_the_disk_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    made = spool.create()
    try:
        assert made.disk.parent == tmp_path
    finally:
        spool.remove(made.all())


OWNER = """
import sys, pathlib
from tfos_ml.feed import spool
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
        yield process, [Path(line) for line in iter(lambda: process.stdout.readline().strip(), "ready")]
        process.kill()


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


def test_sweep_knows_a_dead_owner_whose_pid_was_used_again(tmp_path):
    mine = spool.create(tmp_path)
    prefix, pid, started, rest = mine.disk.name.rsplit("-", 3)
    older = mine.disk.rename(tmp_path / f"{prefix}-{pid}-{int(started) - 3600}-{rest}")
    try:
        assert str(older) in spool.sweep(tmp_path)
        assert not older.exists()
    finally:
        spool.remove(mine.all())
