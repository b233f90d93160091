"""A node that finds no room when it claims what it needs."""

import os
import subprocess

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

ROOM_FOR_TWO = "size=1m,nr_inodes=3"  # the root takes one


class OnlyTask(SparkTask):
    """The task of a node that is alone."""

    def allGather(self, message=""):
        return [message]


def make_node():
    return Supervisor(make_task(), OnlyTask(TaskInfo(0, "127.0.0.1", 1, {})))


@pytest.fixture
def small(tmp_path):
    """A disk that has two inodes left."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", ROOM_FOR_TWO, "none", str(tmp_path)], capture_output=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("free", [0, 1], ids=["for its spool", "for its program"])
def test_no_inodes_on_the_local_disk_is_a_typed_error(small, monkeypatch, free):
    for number in range(2 - free):
        (small / str(number)).touch()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(small))
    with pytest.raises(NodeFailure, match=rf"{small}.* 0 inodes free.*spark\.local\.dir") as caught:
        list(supervise(make_node(), ()))
    assert caught.value.failure.error is errors.SpoolFullError
    assert len(os.listdir(small)) == 2 - free


def wait_for_rows(args, ctx):
    ctx.dataset()


def test_rows_beyond_the_budget_that_the_disk_has_no_room_for_are_a_typed_error(tmp_path, monkeypatch):
    size = spool.DISK_RESERVE + (8 << 20)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(tmp_path)], capture_output=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    try:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
        program = Artifact("program", pack_program("trainFn", wait_for_rows, (wait_for_rows, {}), {}))
        columns = FeedSchema((ColumnSpec("features", "x", "feature", "int64", 0),))
        task = make_task(schema=columns, payload=program, settings=NodeSettings(spool_memory=0))
        numbers = pa.array(np.random.default_rng(0).integers(0, 2**62, 1 << 17))
        batches = [pa.RecordBatch.from_arrays([numbers, pa.array(range(1 << 17))], ["c0", ROW_COLUMN])] * 40  # 80 MiB
        match = rf"no room for 3?[0-9] MiB more rows: {tmp_path}.*has .* MiB free .*spark\.local\.dir"
        with pytest.raises(NodeFailure, match=match) as caught:
            list(supervise(Supervisor(task, OnlyTask(TaskInfo(0, "127.0.0.1", 1, {}))), batches))
        assert caught.value.failure.error is errors.SpoolFullError
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def return_much(args, ctx):
    return b"x" * (4 << 20)


def test_what_a_node_returns_and_the_disk_has_no_room_for_is_a_typed_error(tmp_path, monkeypatch):
    """Models are exported to the same directory."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(tmp_path)], capture_output=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    try:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
        program = Artifact("program", pack_program("trainFn", return_much, (return_much, {}), {}))
        task = make_task(payload=program, settings=NodeSettings(returns=True))
        match = rf"what the train function returned has no room on the node: .*{tmp_path}.*spark\.local\.dir"
        with pytest.raises(NodeFailure, match=match) as caught:
            list(supervise(Supervisor(task, OnlyTask(TaskInfo(0, "127.0.0.1", 1, {}))), ()))
        assert caught.value.failure.error is errors.SpoolFullError
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
