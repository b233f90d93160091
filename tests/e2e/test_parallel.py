"""TFParallel: instances know their number and how many there are, and start at once if that is asked for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tfos_ml import TFParallel, errors

DEADLINE = 60.0


def share(args, ctx):
    """This instance's share of the rows, as TensorFlow's ``Dataset.shard`` has it."""
    return [ctx.worker_num, ctx.num_workers, list(range(10))[ctx.worker_num :: ctx.num_workers]]


@pytest.mark.corner("TFParallel")
def test_instances_share_their_input_by_number(any_spark):
    found = TFParallel.run(any_spark.sparkContext, share, None, 2, use_barrier=True)
    assert found == [[0, 2, [0, 2, 4, 6, 8]], [1, 2, [1, 3, 5, 7, 9]]]


def settings(args, ctx):
    """What else the instance knows: it is a cluster of its own."""
    ctx.barrier("of one")
    return [ctx.job_name, ctx.task_index, ctx.executor_id, ctx.is_chief, ctx.per_node_batch_size, len(ctx.cluster_spec)]


def test_an_instance_is_a_cluster_of_its_own(spark):
    found = TFParallel.run(sc=spark.sparkContext, map_fn=settings, tf_args=None, num_executors=2)
    assert found == [["worker", 0, number, True, 100, 1] for number in (0, 1)]


def meet(args, ctx):
    """Wait for all others to be there, too."""
    Path(args, str(ctx.worker_num)).touch()
    deadline = time.monotonic() + DEADLINE
    while len(list(Path(args).iterdir())) < ctx.num_workers:
        assert time.monotonic() < deadline, "the others have not started"
        time.sleep(0.05)
    return True


def test_behind_a_barrier_all_instances_run_at_once(any_spark, tmp_path):
    assert TFParallel.run(any_spark.sparkContext, meet, str(tmp_path), 4, True) == [True] * 4


def test_arguments_are_checked(spark):
    with pytest.raises(errors.ParamError, match="map_fn must be a function"):
        TFParallel.run(spark, None, None, 1)
    with pytest.raises(errors.ParamError, match="use_barrier must be True or False. Received: 2"):
        TFParallel.run(spark, share, None, 1, 2)
