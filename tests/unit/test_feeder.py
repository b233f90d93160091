"""Of rows that a train function reads once, a bounded number of bytes waits."""

from __future__ import annotations

import pyarrow as pa
import pytest
from node_tasks import make_task

from tfos_ml.agent import feeder
from tfos_ml.data import spool
from tfos_ml.data.schema import ColumnSpec, FeedSchema
from tfos_ml.errors import FeedTimeoutError
from tfos_ml.protocol.messages import ChunkReady, ChunkReleased, Reading
from tfos_ml.protocol.node_task import NodeSettings

WINDOW, CHUNK, ROWS = 1 << 16, 1 << 13, 500  # 8 kB a batch
BATCHES = 40


@pytest.fixture
def said():
    return []


@pytest.fixture
def source(tmp_path, monkeypatch, said):
    monkeypatch.setattr(feeder, "WINDOW_BYTES", WINDOW)
    monkeypatch.setattr(spool, "CHUNK_BYTES", CHUNK)
    task = make_task(
        schema=FeedSchema((ColumnSpec("x", "x", "feature", "int64", 0),)), settings=NodeSettings(feed_timeout=0.5)
    )
    return feeder.Feeder(task, spool.SpoolDirectories(tmp_path, tmp_path), said.append)


def batches():
    for start in range(0, BATCHES * ROWS, ROWS):
        numbers = pa.array(range(start, start + ROWS))
        yield pa.RecordBatch.from_arrays([numbers, numbers], ["c0", "row"])


def chunks(said):
    return [message.chunk for message in said if isinstance(message, ChunkReady)]


def test_rows_that_are_streamed_are_held_within_a_bound_and_come_once(source, said):
    read, most = [], 0
    for seconds in source.feed(batches()):
        most = max(most, sum(chunk.size for chunk in chunks(said)))
        if seconds:  # nothing to do for the feeder
            while chunks(said):
                chunk = chunks(said)[0]
                read += [number for batch in spool.read_chunk(chunk.path) for number in batch["row"].to_pylist()]
                source.handle_message(ChunkReleased(chunk.path))
                said.pop(0)
    source.finish()
    read += [n for chunk in chunks(said) for batch in spool.read_chunk(chunk.path) for n in batch["row"].to_pylist()]
    assert read == list(range(BATCHES * ROWS))
    assert CHUNK < most <= WINDOW + 2 * CHUNK


def test_rows_that_nobody_reads_are_an_error_in_time(source):
    with pytest.raises(FeedTimeoutError, match="feedTimeout=0.5"):
        list(source.feed(batches()))


@pytest.mark.parametrize(("how", "all_come"), [("dataset", True), ("terminated", False)])
def test_rows_that_are_read_again_all_wait_and_those_that_nobody_wants_do_not(source, said, how, all_come):
    source.handle_message(Reading(how, keeps_rows=all_come))
    list(source.feed(batches()))
    source.finish()
    assert (sum(chunk.rows for chunk in chunks(said)) == BATCHES * ROWS) == all_come
