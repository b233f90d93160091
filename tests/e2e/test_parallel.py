"""TFParallel: instances know their number and how many there are, and start at once if that is asked for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tfos_ml import TFParallel


def meet(args, ctx):
    """Wait for all others to be there, too; what the instance knows, which is a cluster of its own."""
    Path(args, str(ctx.worker_num)).touch()
    deadline = time.monotonic() + 60
    while len(list(Path(args).iterdir())) < ctx.num_workers:
        assert time.monotonic() < deadline, "the others have not started"
        time.sleep(0.05)
    ctx.barrier("of one")
    return [ctx.worker_num, ctx.num_workers, ctx.job_name, ctx.task_index, ctx.is_chief, len(ctx.cluster_spec)]


@pytest.mark.corner("TFParallel")
def test_behind_a_barrier_all_instances_run_at_once(spark, tmp_path):
    found = TFParallel.run(sc=spark.sparkContext, map_fn=meet, tf_args=str(tmp_path), num_executors=4, use_barrier=True)
    assert found == [[number, 4, "worker", 0, True, 1] for number in range(4)]
