"""``ctx.dataset(wait=False)``: the first pass takes the rows as they come, and in order."""

import itertools
import json
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from direct_rows import WIDTH, table
from node_tasks import make_task
from test_node_disk import OnlyTask

from tfos_ml import errors
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.data.file_plan import FilePiece, FilePlan, PlannedFile
from tfos_ml.data.order import PARTITION_SHIFT
from tfos_ml.data.schema import ROW_COLUMN, ColumnSpec, FeedSchema
from tfos_ml.data.spool import SpoolDirectories, SpoolWriter
from tfos_ml.data.validation_draw import ValidationDraw
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.failure import NodeFailure
from tfos_ml.protocol.pickling import pack_program
from tfos_ml.protocol.settings import NodeSettings
from tfos_ml.protocol.template import make_template
from tfos_ml.worker.arriving import ChunkLog, Consecutive, Planned, arriving_blocks, format_of_first

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

    def blocks(self, block_rows=1000, planned=None):
        """The rows of each block, with the number of chunks that had been taken by then."""
        order = Consecutive() if planned is None else Planned(np.array([row(*place) for place in planned]))
        form = format_of_first(SCHEMA, self.log)
        return [(values[:, 0].tolist(), self.taken) for (values,) in arriving_blocks(form, self.log, block_rows, order)]


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


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([[(0, 0), (0, 2)], [(2, 1)], [(2, 3)]], [([0, 2], 1), ([201], 2), ([203], 3)]),  # rows of one node of two
        ([[(2, 1)], [(0, 2), (0, 0)], [(2, 3)]], [([0, 2, 201], 2), ([203], 3)]),
        ([[(0, 0)], [(2, 1), (2, 3)], [(0, 2)]], [([0], 1), ([2, 201, 203], 3)]),
    ],
)
def test_rows_of_a_plan_come_at_once_whatever_gaps_their_ids_have(tmp_path, chunks, expected):
    assert Reader(tmp_path, chunks).blocks(planned=[(0, 0), (0, 2), (2, 1), (2, 3)]) == expected


@pytest.mark.parametrize(
    ("chunks", "told"),
    [([[(0, 0)]], "0 are not among them, and 1 are missing"), ([[(0, 0)], [(0, 2), (1, 0)]], "1 are not among them")],
)
def test_other_rows_than_planned_are_an_error(tmp_path, chunks, told):
    with pytest.raises(errors.DataError, match=told):
        Reader(tmp_path, chunks).blocks(planned=[(0, 0), (0, 2)])


def test_blocks_are_bounded(tmp_path):
    assert [b for b, _ in Reader(tmp_path, [[(0, i) for i in range(5)]]).blocks(2)] == [[0, 1], [2, 3], [4]]


def test_a_second_reader_begins_with_the_first_row(tmp_path):
    reader = Reader(tmp_path, [[(0, 0)], [(0, 1)]])
    assert [b for b, _ in reader.blocks()] == [b for b, _ in reader.blocks()] == [[0], [1]]


def test_rows_of_a_partition_that_had_seemed_complete_are_an_error(tmp_path):
    with pytest.raises(errors.DataError, match="came when those of a later one had been trained.*wait=True"):
        Reader(tmp_path, [[(0, 0), (1, 0)], [(0, 1)]]).blocks()


def test_rows_of_another_shape_are_an_error(tmp_path):
    with pytest.raises(errors.ShapeError, match="'n' has rows of 3 elements, the first ones had 2 elements"):
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


# Several nodes, of files whose numbers of rows are known


class OneOfTwo(OnlyTask):
    """A task of one of two nodes, which are threads here."""

    attempt = 0

    def __init__(self, rank, texts, barrier):
        self.rank, self._texts, self._barrier = rank, texts, barrier

    def allGather(self, message=""):
        self._texts[self.rank] = message
        self._barrier.wait(DEADLINE)
        found = list(self._texts)
        self._barrier.wait(DEADLINE)
        return found

    def leave(self, rendezvous):
        return False


def train_a_line(args, ctx):
    """Fit a line step by step, and tell of all rows and the weights of two passes."""
    weights, batches = np.zeros(WIDTH, np.float32), []
    for batch, label in ctx.dataset(BATCH, epochs=2, shuffle=False, drop_remainder=args["drop"], wait=args["wait"]):
        x = np.asarray(batch["x"])
        weights -= np.float32(0.05) * (x.T @ (x @ weights - np.asarray(label, np.float32))) / len(x)
        batches.append(np.asarray(batch["id"]).tolist())
    told = {"batches": batches, "weights": weights.view(np.int32).tolist(), "rows": ctx.row_count}
    (Path(args["directory"]) / f"all-{ctx.task_index}").write_text(json.dumps(told))


def take_too_large_batches(args, ctx):
    ctx.dataset(batch_size=1, shuffle=False, wait=False)


BATCH = 2000
# Rows of files: more than a MiB for each node, so that there is a chunk before the last rows.
MANY = [80_000, 1, 0, 57, 3000]
DEALT = FeedSchema(
    (
        ColumnSpec("id", "id", "feature", "int64", 0),
        ColumnSpec("x", "features", "feature", "float32", 1),
        ColumnSpec("y", "label", "label", "float64", 0),
    ),
    named_features=True,
)


def plan_of(directory, draw, rows):
    """A plan of files with so many rows, each of which is a partition; the third of them is empty."""
    files, pieces, first = [], [], 0
    for number, count in enumerate(rows):
        path = directory / f"{number}.parquet"
        if not path.exists():
            pq.write_table(table(first, count), path)
        size, groups = path.stat().st_size, pq.read_metadata(path).num_row_groups
        files.append(PlannedFile(str(path), size, path.stat().st_mtime_ns))
        pieces.append(FilePiece(number, number, tuple(range(groups)), count))
        first += count
    return FilePlan(tuple(files), tuple(pieces), ("id", "features", "label"), draw)


def lead_both(plan, program, arguments):
    """Lead two nodes that read the files of a plan."""
    payload = Artifact("program", pack_program("trainFn", program, (program, arguments), {}))
    task = make_task(template=make_template(2), schema=DEALT, payload=payload, file_plan=plan)
    texts, barrier, failures = ["", ""], threading.Barrier(2), {}

    def lead(rank):
        try:
            list(supervise(Supervisor(task, OneOfTwo(rank, texts, barrier)), ()))
        except BaseException as error:
            failures[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=lead, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE)
    return failures


@pytest.mark.chaos
@pytest.mark.parametrize("draw", [None, ValidationDraw(0.25, 3)])
def test_several_nodes_have_the_same_batches_whether_they_wait_or_not(tmp_path, without_spark, draw):
    plan, told = plan_of(tmp_path, draw, MANY), {}
    for wait in (False, True):
        directory = tmp_path / f"wait-{wait}"
        directory.mkdir()
        arguments = {"directory": str(directory), "wait": wait, "drop": draw is not None}
        assert lead_both(plan, train_a_line, arguments) == {}
        told[wait] = [json.loads((directory / f"all-{rank}").read_text()) for rank in (0, 1)]
    assert told[False] == told[True]
    ids = [i for node in told[False] for batch in node["batches"] for i in batch]
    assert sorted(ids) == sorted(2 * [*set(ids)])
    rows = told[False][0]["rows"]
    assert (rows == sum(MANY), len(set(ids)) == rows) == (draw is None, draw is None)
    assert len(told[False][0]["batches"]) == len(told[False][1]["batches"])


@pytest.mark.slow
def test_steps_that_a_node_has_no_row_for_are_an_error_before_the_first(tmp_path, without_spark):
    failures = lead_both(plan_of(tmp_path, None, [1]), take_too_large_batches, {})
    assert any("cannot give every worker a batch" in str(error) for error in failures.values())
