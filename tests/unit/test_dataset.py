import itertools

import numpy as np
import pyarrow as pa
import pytest

from tfos_ml import errors
from tfos_ml.data import memory_budget, spool
from tfos_ml.data.arrow import fixed_shape, list_extents, to_storage
from tfos_ml.data.memory_budget import MemoryBudget
from tfos_ml.data.row_order import PARTITION_SHIFT, batch_sizes
from tfos_ml.data.schema import ROW_COLUMN, VECTOR, ColumnConstraint, ColumnSpec, FeedSchema
from tfos_ml.data.spool import SpoolDirectories, SpoolWriter
from tfos_ml.worker import row_store as row_store_module
from tfos_ml.worker.dataset import blocks, make_dataset
from tfos_ml.worker.row_store import RowStore

SEED = 11
TOTALS = [13, 0, 20, 4]
TOTAL = sum(TOTALS)
ROW_IDS = [(p << PARTITION_SHIFT) + i for p, n in enumerate(TOTALS) for i in range(n)]
INDEX = FeedSchema((ColumnSpec("features", "n", "feature", "int64", 0),))


@pytest.fixture
def make_store(tmp_path, monkeypatch):
    """Spools columns, by default in chunks of a few rows, and opens them as a store."""
    monkeypatch.setattr(spool, "free_memory", lambda: 1 << 50)
    counter = itertools.count()

    def make_store(schema, columns, row_ids, rows_a_chunk=5, on_disk=False, **options):
        names = [f"c{i}" for i in range(len(columns))]
        table = pa.table([*columns, pa.array(row_ids, pa.int64())], names=[*names, ROW_COLUMN])
        memory, disk = tmp_path / f"memory-{next(counter)}", tmp_path / f"disk-{next(counter)}"
        memory.mkdir()
        disk.mkdir()
        chunks = []
        writer = SpoolWriter(SpoolDirectories(None if on_disk else memory, disk), "train", chunks.append)
        for batch in table.to_batches(max_chunksize=rows_a_chunk):
            writer.write(batch)
            writer.flush()
        extents = [list_extents(column) for column in columns]
        shapes = [fixed_shape(e, s.ndim) for e, s in zip(extents, schema.columns, strict=True)]
        return RowStore(chunks, schema, shapes, np.array(TOTALS), **options)

    return make_store


@pytest.fixture
def index_store(make_store):
    """Rows in the disorder of their arrival; each is its index in the DataFrame."""

    def index_store(**options):
        mine = np.random.default_rng(0).permutation(np.arange(TOTAL))
        return make_store(INDEX, [pa.array(mine)], [ROW_IDS[i] for i in mine], **options)

    return index_store


def dataset(store, batch=4, epochs=1, seed=SEED, pad_value=0.0):
    steps = -(-len(store) // batch)
    return make_dataset(store, batch_sizes(len(store), batch, steps, False), epochs, seed, pad_value)


def batches(dataset):
    return list(dataset.as_numpy_iterator())


def rows(dataset):
    return np.concatenate(batches(dataset)).tolist()


def test_blocks_are_copies_because_tensorflow_writes_into_them(make_store):
    schema = FeedSchema((spec("features", "feature", "float32"),))
    store = make_store(schema, [pa.array(np.arange(TOTAL), pa.float32())], ROW_IDS, rows_a_chunk=TOTAL)
    ((block,),) = blocks(store, np.array([TOTAL]), None, 0, 0.0)
    block[:] = -1
    assert rows(dataset(store, seed=None)) == list(range(TOTAL))


BUDGETS = {"one window": 1 << 20, "a row a window": 1, "some": 4 * 16 * 8}


class TestSpilledRows:
    """Rows on disk, some or all of them, are what they are in memory."""

    def spilled(self, index_store, budget, **options):
        return index_store(on_disk=True, budget=MemoryBudget(BUDGETS[budget]), **options)

    @pytest.mark.parametrize("budget", BUDGETS)
    @pytest.mark.parametrize(("seed", "block"), [(SEED, None), (SEED, 1)])
    def test_come_in_the_order_of_rows_in_memory(self, index_store, budget, seed, block):
        expected = batches(dataset(index_store(shuffle_block=block), 4, 2, seed))
        found = batches(dataset(self.spilled(index_store, budget, shuffle_block=block), 4, 2, seed))
        assert [b.tolist() for b in found] == [b.tolist() for b in expected]
        assert sorted(itertools.chain(*found[: len(found) // 2])) == list(range(TOTAL))

    def test_files_of_a_pass_that_is_given_up_are_deleted(self, index_store, monkeypatch, tmp_path):
        monkeypatch.setattr(row_store_module, "MOST_READINGS", 0.0)
        store = self.spilled(index_store, "some")
        pieces = store.read(store.plan(SEED, 0)[0], np.arange(TOTAL + 1), np.zeros(0, int))
        next(pieces)
        assert list(tmp_path.glob("**/pass-*/*"))
        pieces.close()
        assert not list(tmp_path.glob("**/pass-*"))

    def test_no_room_for_rows_that_have_to_be_sorted_is_known_before(self, index_store, monkeypatch):
        some, one = self.spilled(index_store, "some"), self.spilled(index_store, "one window")
        in_blocks = self.spilled(index_store, "some", shuffle_block=3)
        some.check_room()
        monkeypatch.setattr(spool, "DISK_RESERVE", 1 << 60)
        with pytest.raises(errors.SpoolFullError, match=r"second copy.*no room for.*spark\.tfos_ml\.shuffleMemory"):
            some.check_room()
        one.check_room()
        in_blocks.check_room()

    def test_no_more_than_a_window_is_loaded_at_a_time(self, index_store, monkeypatch):
        monkeypatch.setattr(row_store_module, "MOST_READINGS", 100.0)
        loaded = []
        real = row_store_module.load_rows
        monkeypatch.setattr(row_store_module, "load_rows", lambda *args: loaded.append(len(args[3])) or real(*args))
        store = self.spilled(index_store, "some")
        assert rows(dataset(store, seed=None)) == list(range(TOTAL))
        assert sum(loaded) == TOTAL
        assert max(loaded) * 16 <= store.budget.window

    def test_texts_and_arrays_come_as_from_memory(self, make_store):
        wide = ColumnSpec("v", "v", "feature", "float32", 1, VECTOR, ColumnConstraint(shape=(9000,)))
        columns = (spec("t", "feature", "string"), spec("x", "feature", "float32", 1), wide)
        lengths = [i % 3 + 1 for i in range(TOTAL)]
        arrays = [
            pa.array([f"row {i} é" for i in range(TOTAL)]),
            pa.array([[float(i)] * n for i, n in enumerate(lengths)], pa.list_(pa.float32())),
            to_storage(pa.array([[float(i)] * 9000 for i in range(TOTAL)]), wide),
        ]
        held, spilled = (
            batches(
                dataset(
                    make_store(FeedSchema(columns, True), arrays, ROW_IDS, on_disk=on_disk, budget=MemoryBudget(999)),
                    pad_value=-1.0,
                )
            )
            for on_disk in (False, True)
        )
        for one, other in zip(held, spilled, strict=True):
            assert [one[name].tolist() for name in "tvx"] == [other[name].tolist() for name in "tvx"]


def spec(name, role, dtype, ndim=0):
    return ColumnSpec(name, name, role, dtype, ndim)


GIB = 1 << 30


def test_nodes_of_a_host_with_their_copies_take_half_of_what_is_free(monkeypatch):
    """Red before: each had half of it, and a copy took three times the rows."""
    nodes, free = 5, 6.5 * GIB
    monkeypatch.setattr(memory_budget, "free_memory", lambda: free)
    budget = MemoryBudget.of_node(None).among(nodes, None)
    assert nodes * budget.size <= free / 2
    largest = int(budget.size / 2.5)  # half of it for numbers that are converted
    assert budget.has_room_for_copy(largest)
    assert not budget.has_room_for_copy(largest + 100)
