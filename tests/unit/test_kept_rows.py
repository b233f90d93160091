"""Rows that stay on a host between fits: links to the chunks of a spool, which outlive it and cost nothing more."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tfos_ml.data import kept_rows, spool
from tfos_ml.data.kept_rows import KeptRows

OLD = 1_000_000.0  # seconds since 1970


@pytest.fixture
def make_spool(monkeypatch, tmp_path):
    """Makes spools, the memory of which is a directory of the test's own, and removes them."""
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(spool, "SHARED_MEMORY", memory)
    monkeypatch.setattr(kept_rows, "SHARED_MEMORY", memory)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(disk))
    monkeypatch.setattr(kept_rows.tempfile, "gettempdir", lambda: str(disk))
    return spool.create


def fill(directories, rows=10, budget=None):
    """Chunks of a spool, one of each stream."""
    chunks = []
    for stream in ("train", "validation"):
        writer = spool.SpoolWriter(directories, stream, lambda chunk, stream=stream: chunks.append((stream, chunk)))
        writer.write(pa.record_batch([pa.array(range(rows))], ["x"]))
        writer.flush()
    return chunks


def values(rows):
    return [(stream, batch.to_pydict()) for stream, chunk in rows for batch in spool.read_chunk(chunk.path)]


def anything(facts):
    return True


def kept_on_host(tmp_path):
    return sorted(tmp_path.glob("*/tfos_ml-rows-*"))


@pytest.mark.parametrize("budget", [None, 0], ids=["in memory", "on disk"])
def test_kept_rows_outlive_their_spool_and_are_those_of_the_next(make_spool, tmp_path, budget):
    first, second = make_spool(budget=budget), make_spool(budget=budget)
    chunks = fill(first)
    given = values(chunks)
    assert kept_rows.keep("key", 3, os.getpid(), KeptRows(chunks, {"rows": 20}))
    spool.remove(first.all())
    taken = kept_rows.take("key", 3, second, anything)
    assert values(taken.chunks) == given
    assert taken.facts == {"rows": 20}
    assert {Path(chunk.path).parent for _, chunk in taken.chunks} <= {second.memory, second.disk}
    kept_rows.remove(["key"])
    assert values(taken.chunks) == given  # links, too
    assert not kept_on_host(tmp_path)


def test_other_ranks_and_names_have_other_rows(make_spool):
    directories = make_spool()
    kept_rows.keep("key", 1, os.getpid(), KeptRows(fill(directories), {}))
    for key, rank in (("key", 0), ("key", 11), ("ke", 1), ("other", 1)):
        assert kept_rows.take(key, rank, make_spool(), anything) is None


@pytest.mark.parametrize("damage", ["no manifest", "half a manifest", "chunk gone", "chunk cut off", "not enough"])
def test_what_is_not_whole_is_not_taken_and_leaves_nothing(make_spool, tmp_path, damage):
    directories, mine = make_spool(), make_spool()
    kept_rows.keep("key", 0, os.getpid(), KeptRows(fill(directories), {}))
    (place,) = kept_on_host(tmp_path)
    manifest, last = place / "manifest.json", sorted(place.glob("*.arrow"))[-1]
    match damage:
        case "no manifest":
            manifest.unlink()
        case "half a manifest":
            manifest.write_text(manifest.read_text()[:40])
        case "chunk gone":
            last.unlink()
        case "chunk cut off":
            last.unlink()
            last.write_bytes(b"ARROW1")
    assert kept_rows.take("key", 0, mine, lambda facts: damage != "not enough") is None
    assert not [*mine.memory.iterdir(), *mine.disk.iterdir()]


def test_rows_without_room_are_not_kept(make_spool, tmp_path):
    chunks = fill(make_spool())
    Path(chunks[-1][1].path).unlink()
    assert not kept_rows.keep("key", 0, os.getpid(), KeptRows(chunks, {}))
    assert not kept_on_host(tmp_path)


def test_a_node_without_rows_keeps_that_it_has_none(make_spool):
    kept_rows.keep("key", 0, os.getpid(), KeptRows([], {"rows": 0}))
    assert kept_rows.take("key", 0, make_spool(), anything) == KeptRows([], {"rows": 0})


def test_what_is_not_used_for_long_expires_and_a_use_counts(make_spool, tmp_path):
    for rank in (0, 1):
        kept_rows.keep("key", rank, os.getpid(), KeptRows(fill(make_spool()), {}))
    for place in kept_on_host(tmp_path):
        os.utime(place, (OLD, OLD))
    assert kept_rows.take("key", 1, make_spool(), anything) is not None
    kept_rows.expire(3600)
    assert kept_rows.take("key", 0, make_spool(), anything) is None
    assert kept_rows.take("key", 1, make_spool(), anything) is not None


def test_rows_go_with_the_process_that_they_belong_to(make_spool, tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        kept_rows.keep("key", 0, owner.pid, KeptRows(fill(make_spool()), {}))
        kept_rows.expire(3600)
        assert kept_on_host(tmp_path)
    finally:
        owner.communicate(b"\n", timeout=30)
    kept_rows.expire(3600)
    assert not kept_on_host(tmp_path)


def test_a_directory_of_another_user_is_not_trusted(make_spool, tmp_path, monkeypatch):
    kept_rows.keep("key", 0, os.getpid(), KeptRows(fill(make_spool()), {}))
    mine = make_spool()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert kept_rows.take("key", 0, mine, anything) is None
