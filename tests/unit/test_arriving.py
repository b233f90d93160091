"""``ctx.dataset(wait=False)``: the first pass takes the rows as they come, and in order."""

import itertools
import json
import time

import pyarrow as pa
import pytest
from node_tasks import make_task
from test_node_disk import OnlyTask

from tfos_ml import errors
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.data.order import PARTITION_SHIFT
from tfos_ml.data.schema import ROW_COLUMN, ColumnSpec, FeedSchema
from tfos_ml.data.spool import SpoolDirectories, SpoolWriter
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.failure import NodeFailure
from tfos_ml.protocol.pickling import pack_program
from tfos_ml.protocol.settings import NodeSettings
from tfos_ml.worker.arriving import ChunkLog, arriving_blocks, format_of_first

DEADLINE = 60.0
SCHEMA = FeedSchema((ColumnSpec("features", "n", "feature", "int64", 1),))


def batch(numbers, ids, width=2):
    lists = pa.array([[n] * width for n in numbers], pa.list_(pa.int64()))
    return pa.RecordBatch.from_arrays([lists, pa.array(ids, pa.int64())], ["c0", ROW_COLUMN])


def row(partition, position):
    return (partition << PARTITION_SHIFT) + position


class Reader:
    """Reads blocks, and knows how many chunks have been taken; a chunk is a list of (partition, position)."""

    def __init__(self, directory, chunks, on_disk=False, widths=None):
        self.taken, stored = 0, []
        places = SpoolDirectories(None if on_disk else directory, directory)
        for number, (chunk, width) in enumerate(zip(chunks, widths or itertools.repeat(2), strict=False)):
            writer = SpoolWriter(places, f"chunk-{number}", stored.append)
            writer.write(batch([p * 100 + i for p, i in chunk], [row(p, i) for p, i in chunk], width))
            writer.flush()
        rest = iter(stored)

        def take():
            chunk = next(rest, None)
            self.taken += chunk is not None
            return chunk

        self.log = ChunkLog(take)

    def blocks(self, block_rows=1000):
        """The rows of each block, with the number of chunks that had been taken by then."""
        form = format_of_first(SCHEMA, self.log)
        return [(values[:, 0].tolist(), self.taken) for (values,) in arriving_blocks(form, self.log, block_rows)]


@pytest.mark.parametrize("on_disk", [False, True])
def test_rows_come_at_once_while_it_is_known_which_is_next(tmp_path, on_disk):
    reader = Reader(tmp_path, [[(0, 0), (0, 1)], [(0, 2), (1, 0)], [(1, 1), (2, 0)]], on_disk)
    assert reader.blocks() == [([0, 1], 1), ([2, 100], 2), ([101, 200], 3)]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([[(1, 0)], [(0, 0)], [(1, 1)]], [([0, 100], 2), ([101], 3)]),  # the first partition comes late
        ([[(0, 0)], [(2, 0)], [(2, 1)]], [([0], 1), ([200, 201], 3)]),  # one is empty, or late
        ([[(0, 0)], [(2, 0)], [(1, 0)]], [([0], 1), ([100, 200], 3)]),
        ([[(0, 0), (0, 2)], [(0, 3)]], [([0], 1), ([2, 3], 2)]),  # a row was left out
        ([[(0, 1), (0, 0)]], [([0, 1], 1)]),
    ],
)
def test_what_may_still_come_in_between_is_waited_for(tmp_path, chunks, expected):
    assert Reader(tmp_path, chunks).blocks() == expected


def test_blocks_are_bounded(tmp_path):
    assert [b for b, _ in Reader(tmp_path, [[(0, i) for i in range(5)]]).blocks(2)] == [[0, 1], [2, 3], [4]]


def test_a_second_reader_begins_with_the_first_row(tmp_path):
    reader = Reader(tmp_path, [[(0, 0)], [(0, 1)]])
    assert [b for b, _ in reader.blocks()] == [b for b, _ in reader.blocks()] == [[0], [1]]


def test_rows_of_a_partition_that_had_seemed_complete_are_an_error(tmp_path):
    with pytest.raises(errors.DataError, match="came when those of a later one had been trained.*wait=True"):
        Reader(tmp_path, [[(0, 0), (1, 0)], [(0, 1)]]).blocks()


def test_rows_of_another_shape_are_an_error(tmp_path):
    with pytest.raises(errors.ShapeError, match=r"'n' has rows of shape \(3,\), the first ones had \(2,\)"):
        Reader(tmp_path, [[(0, 0)], [(0, 1)]], widths=[2, 3]).blocks()


def first_batch_then_all(args, ctx):
    """Tell of the first batch; then read two passes, and tell of them."""
    dataset = ctx.dataset(batch_size=1000, epochs=2, shuffle=False, wait=False)
    batches = iter(dataset)
    ids = next(batches)[:, 0].numpy().tolist()
    with open(args["first"], "w") as file:
        json.dump(ids, file)
    for batch in batches:
        ids += batch[:, 0].numpy().tolist()
    with open(args["all"], "w") as file:
        json.dump([ids, ctx.row_count], file)


def shuffle_at_once(args, ctx):
    ctx.dataset(shuffle=True, wait=False)


def node(program, arguments, **settings):
    payload = Artifact("program", pack_program("trainFn", program, (program, arguments), {}))
    task = make_task(schema=SCHEMA, payload=payload, settings=NodeSettings(**settings))
    return Supervisor(task, OnlyTask())


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1 << 30, 1 << 20])
def test_training_begins_before_the_last_rows_are_there(tmp_path, without_spark, budget):
    first, everything, rows = tmp_path / "first", tmp_path / "all", 30_000

    def arriving():
        yield batch(range(20_000), range(20_000), 10)
        deadline = time.monotonic() + DEADLINE
        while not first.exists():  # the rest does not come before
            assert time.monotonic() < deadline, "there was no first batch"
            yield None
        yield batch(range(20_000, rows), range(20_000, rows), 10)

    list(
        supervise(
            node(first_batch_then_all, {"first": str(first), "all": str(everything)}, spool_memory=budget), arriving()
        )
    )
    assert json.loads(first.read_text()) == list(range(1000))
    assert json.loads(everything.read_text()) == [[*range(rows)] * 2, rows]


@pytest.mark.slow
def test_a_shuffle_cannot_begin_before(without_spark):
    with pytest.raises(NodeFailure, match="wait=False needs shuffle=False"):
        list(supervise(node(shuffle_at_once, {}), [batch([1], [0])]))
