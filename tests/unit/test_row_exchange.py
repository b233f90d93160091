"""Nodes that read files together, each in threads of this process: rows, order, failures, memory, without Spark."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from node_tasks import make_task
from pyarrow import fs

from tfos_ml import errors
from tfos_ml.agent import row_exchange, row_outbox
from tfos_ml.agent.file_rows import read_share
from tfos_ml.agent.file_source import FileSource
from tfos_ml.agent.rendezvous import NodeInfo
from tfos_ml.agent.row_exchange import Inbox, Peer
from tfos_ml.data import spool
from tfos_ml.data.file_plan import FilePiece, FilePlan, PlannedFile
from tfos_ml.data.row_condition import Call, ColumnOf, Literal
from tfos_ml.data.schema import ROW_COLUMN, ColumnSpec, FeedSchema
from tfos_ml.data.spool import Chunk, SpoolDirectories, read_chunk
from tfos_ml.data.validation_draw import ValidationDraw
from tfos_ml.protocol.control_messages import PartsReady, RowPart
from tfos_ml.protocol.messages import ChunkReady, EndOfInput
from tfos_ml.protocol.settings import NodeSettings
from tfos_ml.protocol.template import make_template

ROWS, GROUP, WIDTH = 300, 20, 3
DEADLINE = 30.0
SCHEMA = FeedSchema((ColumnSpec("x", "x", "feature", "float32", 1), ColumnSpec("id", "id", "label", "int64", 0)))


@pytest.fixture
def path(tmp_path):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * WIDTH, dtype=np.float32)), WIDTH)
    table = pa.table({"id": np.arange(ROWS), "x": lists.cast(pa.list_(pa.float32()))})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=GROUP)
    return tmp_path / "rows.parquet"


def planned(path, **options) -> FilePlan:
    """A plan of one file, of whose row groups the first third is in one partition, and the rest in another."""
    info = fs.LocalFileSystem().get_file_info(str(path))
    pieces = tuple(FilePiece(int(i >= 5), 0, (i,), GROUP, 1000) for i in range(ROWS // GROUP))
    return FilePlan((PlannedFile(str(path), info.size, info.mtime_ns),), pieces, ("x", "id"), **options)


class Node:
    """A node's source of rows, and what it has announced."""

    def __init__(self, place, plan, template, rank, budget=1 << 30, **settings):
        (place / str(rank)).mkdir(parents=True)
        self.directories = SpoolDirectories(place / str(rank) if budget else None, place / str(rank), budget)
        self.rank, self.sent = rank, []
        task = make_task(
            template=template,
            schema=SCHEMA,
            file_plan=plan,
            control={"location": "", "token": "secret"},
            settings=NodeSettings(**{"feed_timeout": 10.0, **settings}),
        )
        self.source = FileSource(task, rank, "127.0.0.1", self.directories, self.sent.append)

    def info(self) -> NodeInfo:
        return NodeInfo(self.rank, f"worker:{self.rank}", "127.0.0.1", 1, {}, 1, self.source.location)

    def run(self) -> None:
        deadline = time.monotonic() + DEADLINE
        for idle in self.source.feed(()):
            self.source.check()
            assert time.monotonic() < deadline, "the input does not end"
            time.sleep(idle)
        self.source.finish()

    def rows(self, stream="train") -> pa.Table:
        chunks = [m.chunk for m in self.sent if isinstance(m, ChunkReady) and m.stream == stream]
        assert all(os.path.dirname(chunk.path) == str(self.directories.disk) for chunk in chunks)
        batches = [batch for chunk in chunks for batch in read_chunk(chunk.path)]
        assert sum(chunk.rows for chunk in chunks) == sum(batch.num_rows for batch in batches)
        return pa.Table.from_batches(batches).combine_chunks() if batches else pa.table({})

    @property
    def has_ended(self) -> bool:
        return EndOfInput() in self.sent


@contextmanager
def nodes(place, plan, workers, template=None, **options):
    """Nodes that have met."""
    template = template or make_template(workers)
    with ExitStack() as stack:
        found = [Node(place, plan, template, rank, **options) for rank in range(template.size)]
        for node in found:
            node.source.start()
            stack.callback(node.source.stop)
        infos = [node.info() for node in found]
        problems = [node.source.connect(infos) for node in found]
        for node in found:
            node.source.begin(problems)
        yield found


def run_all(found) -> None:
    with ThreadPoolExecutor(len(found)) as pool:
        for future in [pool.submit(node.run) for node in found]:
            future.result()


def alone(plan, workers, rank, template=None):
    """What a node reads that reads all files itself: its rows to train on, and those to validate on."""
    batches = list(read_share(plan, SCHEMA, template or make_template(workers), rank))
    table = pa.Table.from_batches(batches).combine_chunks()
    if "validation" not in table.schema.names:
        return table, None
    marked, rows = table["validation"].to_numpy(), table.drop_columns(["validation"])
    return rows.take(np.flatnonzero(~marked)), rows.take(np.flatnonzero(marked))


@pytest.fixture(params=["one host", "several hosts"])
def hosts(request, monkeypatch):
    """Whether the files of other nodes are there."""
    if request.param == "several hosts":
        monkeypatch.setattr(row_exchange, "_is_here", lambda chunk: False)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("least", [1 << 20, 100], ids=["written anew", "as they came"])
@pytest.mark.parametrize("budget", [1 << 30, 0], ids=["memory", "disk"])
@pytest.mark.usefixtures("hosts")
def test_each_node_has_the_rows_that_it_would_read_alone_in_the_same_order(
    path, tmp_path, monkeypatch, workers, least, budget
):
    monkeypatch.setattr(spool, "FIRST_CHUNK_BYTES", least)
    plan = planned(path, validation=ValidationDraw(0.2, 1))
    with nodes(tmp_path / "spool", plan, workers, budget=budget) as found:
        run_all(found)
        for node in found:
            training, validation = alone(plan, workers, node.rank)
            assert node.rows().equals(training)
            assert node.rows("validation").equals(validation)
            assert node.source.rows == {"train": len(training), "validation": len(validation)}
        read = [node.source.facts()["read_rows"] for node in found]
    assert sum(read) == ROWS, "each row is read once"
    assert max(read) - min(read) <= 2 * GROUP


def test_an_evaluator_reads_its_rows_itself_and_a_parameter_server_none(path, tmp_path):
    plan = planned(path, validation=ValidationDraw(0.2, 1))
    template = make_template(4, num_ps=1, eval_node=True)
    with nodes(tmp_path / "spool", plan, 4, template) as found:
        run_all(found)
        rows = {template.nodes[node.rank].label: node for node in found}
        for label in ("worker:0", "worker:1"):
            assert rows[label].rows().equals(alone(plan, 4, rows[label].rank, template)[0])
            assert rows[label].source.rows["validation"] == 0
        evaluator = rows["evaluator:0"]
        assert evaluator.rows("validation").equals(alone(plan, 4, evaluator.rank, template)[1])
        assert rows["ps:0"].source.rows == {"train": 0, "validation": 0}
        assert [rows[f"worker:{i}"].source.facts()["read_rows"] for i in (0, 1)] == [140, 160]


def test_nodes_without_a_piece_of_their_own_have_their_rows(path, tmp_path):
    plan = replace(planned(path), pieces=planned(path).pieces[:1])
    with nodes(tmp_path / "spool", plan, 5) as found:
        run_all(found)
        assert sorted(i for node in found for i in node.rows()["c1"].to_pylist()) == list(range(GROUP))
        assert sorted(node.source.facts()["read_rows"] for node in found) == [0, 0, 0, 0, GROUP]


def test_a_filter_has_whole_partitions_read_by_one_node(path, tmp_path):
    plan = planned(path, condition=Call("greater_equal", (ColumnOf("id"), Literal(90, "int64"))))
    with nodes(tmp_path / "spool", plan, 3) as found:
        run_all(found)
        for node in found:
            assert node.rows().equals(alone(plan, 3, node.rank)[0])
        assert sorted(node.source.facts()["read_rows"] for node in found) == [0, 10, 200]


def test_a_node_that_takes_no_rows_does_not_stop_the_others(path, tmp_path, monkeypatch):
    monkeypatch.setattr(row_outbox, "WINDOW_BYTES", 1)
    plan = planned(path)
    with nodes(tmp_path / "spool", plan, 3) as found:
        run_all(found[1:])
        assert not found[0].has_ended
        found[0].run()
        for node in found:
            assert node.rows().equals(alone(plan, 3, node.rank)[0])


def test_readers_wait_while_nobody_needs_more(path, tmp_path, monkeypatch):
    monkeypatch.setattr(row_outbox, "WINDOW_BYTES", 1)
    with nodes(tmp_path / "spool", planned(path), 2) as found:
        deadline = time.monotonic() + 1.0  # in which all would be read many times
        while time.monotonic() < deadline:
            assert all(node.source.facts()["read_rows"] < ROWS / 2 for node in found)
            time.sleep(0.05)
        run_all(found)
        assert sum(node.source.facts()["read_rows"] for node in found) == ROWS


def test_a_node_that_wants_no_rows_reads_on_for_the_others(path, tmp_path):
    plan = planned(path)
    with nodes(tmp_path / "spool", plan, 2) as (leaving, staying):
        leaving.source.close()
        staying.run()
        assert staying.rows().equals(alone(plan, 2, 1)[0])
        leaving.source.check()
        assert not leaving.has_ended


def test_a_file_that_changes_is_an_error_of_its_reader_and_no_end_of_the_others(path, tmp_path, monkeypatch):
    monkeypatch.setattr(row_exchange, "LEASE_SECONDS", 0.5)
    plan = planned(path)
    os.utime(path, ns=(0, 1))
    with nodes(tmp_path / "spool", plan, 2) as found:
        for node in found:
            with pytest.raises(errors.FilesChangedError, match=r"rows\.parquet had .* has changed since"):
                node.run()
        assert not any(node.has_ended for node in found)


def test_a_node_that_does_not_answer_is_an_error(path, tmp_path, monkeypatch):
    monkeypatch.setattr(row_exchange, "LEASE_SECONDS", 0.5)
    with nodes(tmp_path / "spool", planned(path), 2) as (gone, left):
        gone.source.stop()
        with pytest.raises(errors.NodeLostError, match="worker:0, which reads files for this node, does not answer"):
            left.run()
        assert not left.has_ended


def test_nodes_that_do_not_reach_each_other_read_alone(path, tmp_path):
    plan = planned(path)
    with ExitStack() as stack:
        found = [Node(tmp_path / "spool", plan, make_template(2), rank) for rank in range(2)]
        for node in found:
            node.source.start()
            stack.callback(node.source.stop)
        infos = [found[0].info(), replace(found[1].info(), feed=None)]
        problems = [node.source.connect(infos) for node in found]
        for node in found:
            node.source.begin(problems)
        run_all(found)
        for node in found:
            assert node.rows().equals(alone(plan, 2, node.rank)[0])
            told = node.source.facts()["reads_alone_because"]
            assert told == "worker:0 on 127.0.0.1 does not reach worker:1"


class Forged(Peer):
    """A node that sends other rows than it tells of."""

    def __init__(self, parts):
        super().__init__(0, "worker:0", lambda call: PartsReady(parts[call.taken :], 1))


@pytest.mark.parametrize(("told", "unit"), [(4, 0), (5, 1)])
def test_a_unit_that_is_not_whole_is_an_error(tmp_path, told, unit):
    table = pa.table({ROW_COLUMN: np.arange(5)})
    with pa.ipc.new_file(str(tmp_path / "chunk.arrow"), table.schema) as writer:
        writer.write_table(table)
    size = (tmp_path / "chunk.arrow").stat().st_size
    chunk = Chunk(str(tmp_path / "chunk.arrow"), 5, size, on_disk=True)
    parts = [RowPart(0, unit, 5, "train", chunk), RowPart(1, unit, told)]
    units = FilePlan((), (FilePiece(0, 0, (0,), 5),), ()).units(1)
    inbox = Inbox(0, SpoolDirectories(None, tmp_path), [(units[0], 0)], [Forged(parts)], 10.0)
    try:
        with pytest.raises(errors.NodeLostError, match=f"worker:0 has sent 5 of {told} rows of unit {unit}, expected"):
            list(inbox.chunks())
    finally:
        inbox.close()
        inbox.join()


def test_a_node_that_reads_nothing_in_time_is_an_error(tmp_path):
    units = FilePlan((), (FilePiece(0, 0, (0,), 5),), ()).units(1)
    inbox = Inbox(0, SpoolDirectories(None, tmp_path), [(units[0], 0)], [Forged([])], 0.3)
    try:
        with pytest.raises(errors.NodeLostError, match=r"worker:0 has read no more rows .* for feedTimeout=0\.3 s"):
            list(inbox.chunks())
    finally:
        inbox.close()
        inbox.join()
