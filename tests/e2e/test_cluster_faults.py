"""TFCluster when something dies, hangs or is forgotten: nodes end by themselves, and leave nothing."""

from __future__ import annotations

import argparse
import os
import signal
import threading

import pytest
import train_functions
from conftest import CLEAN_SECONDS, CLUSTER, jobs_of, our_processes, wait_until
from test_faults import gone, running

from tfos_ml import InputMode, TFCluster, TFParallel, errors


def start(spark, map_fun, directory, mode=InputMode.SPARK, nodes=2, **options):
    args = argparse.Namespace(directory=str(directory))
    return TFCluster.run(spark.sparkContext, map_fun, args, nodes, input_mode=mode, **options)


def test_a_killed_supervisor_ends_the_cluster_though_the_driver_sleeps(spark, tmp_path):
    cluster = start(spark, train_functions.hang_with_grandchild, tmp_path)
    pids = running(tmp_path, 2)
    os.kill(pids["supervisor"][0], signal.SIGKILL)
    assert wait_until(lambda: gone([p for kind in pids.values() for p in kind]), CLEAN_SECONDS)
    assert wait_until(lambda: not our_processes(), CLEAN_SECONDS)
    with pytest.raises(errors.NodeLostError, match="supervisor of the node died"):
        cluster.train(spark.range(10))
    cluster.shutdown()


def test_a_canceled_job_ends_the_nodes_that_it_holds(spark, tmp_path):
    cluster = start(spark, train_functions.hang_with_grandchild, tmp_path, InputMode.TENSORFLOW, nodes=1)
    pids = running(tmp_path, 1)
    spark.sparkContext.cancelAllJobs()
    assert wait_until(lambda: gone([p for kind in pids.values() for p in kind]), CLEAN_SECONDS)
    with pytest.raises(errors.NodeLostError, match="Spark executor or task that the node belongs to is gone"):
        cluster.shutdown()


def instance(args, ctx):
    """Return what the instance is; fail in one if asked to."""
    import os

    if ctx.executor_id == args.get("fail_on"):
        raise ZeroDivisionError("the user's own mistake")
    return {"number": ctx.executor_id, "workers": ctx.num_workers, "tf_config": os.environ["TF_CONFIG"]}


def test_parallel_instances_return_their_results_on_several_executors(sessions):
    spark = sessions.get(CLUSTER)
    found = TFParallel.run(spark.sparkContext, instance, {}, 5)
    assert [f["number"] for f in found] == [0, 1, 2, 3, 4]
    assert {f["workers"] for f in found} == {5}
    assert len({f["tf_config"] for f in found}) == 5
    with pytest.raises(errors.TrainFnError, match="worker:1 on .*ZeroDivisionError: the user's own mistake"):
        TFParallel.run(spark, instance, {"fail_on": 1}, 2)


def test_two_clusters_started_at_once_with_slots_for_one_follow_each_other(spark, tmp_path):
    ended = []

    def run(name):
        (tmp_path / name).mkdir()
        with start(spark, train_functions.do_nothing, tmp_path / name, InputMode.TENSORFLOW, nodes=3):
            pass
        ended.append(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(ended) == ["one", "two"]


def test_bad_arguments_fail_before_anything_starts(spark, tmp_path):
    before = jobs_of(spark)
    for options, error, message in (
        ({"nodes": 5}, errors.NotEnoughSlotsError, "needs 5 task slots"),
        ({"nodes": 2, "num_ps": 2}, errors.ParamError, "leaves no worker"),
        ({"mode": "FAST"}, errors.ParamError, "input_mode must be"),
        ({"num_ps": 1, "driver_ps_nodes": True}, errors.ParamError, "driver_ps_nodes=True needs"),
        ({"queues": "input"}, errors.ParamError, "queues must be names"),
    ):
        with pytest.raises(error, match=message):
            start(spark, train_functions.do_nothing, tmp_path, **options)
    lock = threading.Lock()
    with pytest.raises(errors.TrainFnPickleError, match="captured variable 'lock'"):
        TFCluster.run(spark.sparkContext, lambda args, ctx: lock, None, 1)
    with pytest.raises(errors.ParamError, match="sc must be a SparkContext"):
        TFCluster.run("local", train_functions.do_nothing, None, 1)
    with pytest.raises(errors.ParamError, match="map_fn must be a function"):
        TFParallel.run(spark, None, None, 1)
    assert jobs_of(spark) == before
