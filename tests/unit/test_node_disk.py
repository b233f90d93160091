"""A node that finds no room when it claims what it needs."""

import os

import numpy as np
import pyarrow as pa
import pytest
from node_tasks import make_task

from tfos_ml import errors
from tfos_ml.agent.spark_task import SparkTask, TaskInfo
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.data import spool
from tfos_ml.data.schema import ROW_COLUMN, ColumnSpec, FeedSchema
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.failure import NodeFailure
from tfos_ml.protocol.node_task import NodeSettings
from tfos_ml.protocol.pickling import pack_program


class OnlyTask(SparkTask):
    """The task of a node that is alone."""

    def allGather(self, message=""):
        return [message]


@pytest.fixture
def local_disk(small, monkeypatch):
    """Mounts a small filesystem as the local directory of Spark."""

    def mount(options):
        disk = small(options)
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(disk))
        return disk

    return mount


def refusal(match, batches=(), **changes):
    """The error of a node that is alone."""
    node = Supervisor(make_task(**changes), OnlyTask(TaskInfo(0, "127.0.0.1", 1, {})))
    with pytest.raises(NodeFailure, match=match) as caught:
        list(supervise(node, batches))
    return caught.value.failure.error


def program(function):
    return Artifact("program", pack_program("trainFn", function, (function, {}), {}))


def test_no_inodes_on_the_local_disk_is_a_typed_error(local_disk):
    disk = local_disk("size=1m,nr_inodes=1")  # the root takes one
    assert refusal(rf"{disk}.* 0 inodes free.*spark\.local\.dir") is errors.SpoolFullError
    assert os.listdir(disk) == []


def wait_for_rows(args, ctx):
    ctx.dataset()


def test_rows_beyond_the_budget_that_the_disk_has_no_room_for_are_a_typed_error(local_disk):
    disk = local_disk(f"size={spool.DISK_RESERVE + (8 << 20)}")
    numbers = pa.array(np.random.default_rng(0).integers(0, 2**62, 1 << 17))
    batches = [pa.RecordBatch.from_arrays([numbers, pa.array(range(1 << 17))], ["c0", ROW_COLUMN])] * 40  # 80 MiB
    error = refusal(
        rf"no room for 3?[0-9] MiB more rows: {disk}.*has .* MiB free .*spark\.local\.dir",
        batches,
        schema=FeedSchema((ColumnSpec("features", "x", "feature", "int64", 0),)),
        payload=program(wait_for_rows),
        settings=NodeSettings(spool_memory=0),
    )
    assert error is errors.SpoolFullError
    assert os.listdir(disk) == []
