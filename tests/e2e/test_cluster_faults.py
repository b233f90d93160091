"""TFCluster when something dies, hangs or is forgotten: nodes end by themselves, and leave nothing."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import train_functions
from conftest import CLEAN_SECONDS, CLUSTER, our_processes, wait_until
from test_faults import gone, kill_with_children, running

from tfos_ml import InputMode, TFCluster, TFParallel, errors


def start(spark, map_fun, directory, mode=InputMode.SPARK, nodes=2, **options):
    args = argparse.Namespace(directory=str(directory))
    return TFCluster.run(spark.sparkContext, map_fun, args, nodes, input_mode=mode, **options)


@pytest.mark.parametrize(
    ("victim", "error", "message"),
    [("child", errors.NodeExitError, "SIGKILL"), ("supervisor", errors.NodeLostError, "supervisor of the node died")],
)
def test_a_killed_process_ends_the_cluster_though_the_driver_sleeps(spark, tmp_path, victim, error, message):
    cluster = start(spark, train_functions.hang_with_grandchild, tmp_path)
    pids = running(tmp_path, 2)
    os.kill(pids[victim][0], signal.SIGKILL)
    assert wait_until(lambda: gone([p for kind in pids.values() for p in kind]), CLEAN_SECONDS)
    assert wait_until(lambda: not our_processes(), CLEAN_SECONDS)
    with pytest.raises(error, match=message):
        cluster.train(spark.range(10))
    cluster.shutdown()


DRIVER = """
import argparse, os, sys
from pyspark.sql import SparkSession
import train_functions
from tfos_ml import InputMode, TFCluster
spark = (SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
args = argparse.Namespace(directory=sys.argv[2])
cluster = TFCluster.run(spark.sparkContext, train_functions.hang_with_grandchild, args, 2, input_mode=InputMode.SPARK)
print("started", flush=True)
sys.stdin.readline()
spark.stop()
sys.stdin.read()
"""


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "stops Spark"])
def test_nodes_do_not_outlive_their_driver(tmp_path, end):
    command = [sys.executable, "-c", DRIVER, CLUSTER if end == "killed" else "local[2]", str(tmp_path)]
    driver = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert driver.stdout.readline() == "started\n"
        pids = running(tmp_path, 2)
        nodes = [p for kind in pids.values() for p in kind]
        driver.send_signal(signal.SIGSTOP)
        assert not wait_until(lambda: any(gone([pid]) for pid in nodes), 6 if end == "killed" else 0)
        driver.send_signal(signal.SIGCONT)  # it only stood still for a while, and no node has given it up
        assert not wait_until(lambda: any(gone([pid]) for pid in nodes), 4 if end == "killed" else 0)
        if end == "killed":
            driver.kill()
        else:
            driver.stdin.write("stop Spark, and forget the cluster\n")
            driver.stdin.flush()
        assert wait_until(lambda: gone(nodes), CLEAN_SECONDS + 2)
        driver.communicate("", timeout=30)
    finally:
        kill_with_children(driver.pid)


def record_slowly(args, ctx):
    """Write down the pid of this node at once, and how many rows it got at the end."""
    train_functions.write(args, ctx, {"child": os.getpid()})
    feed, rows = ctx.get_data_feed(), []
    while not feed.should_stop():
        rows.extend(feed.next_batch(10))
    ctx.report({"rows": len(rows)})


@pytest.mark.chaos
def test_a_process_that_stands_still_for_35_seconds_while_it_is_fed_is_waited_for(spark, tmp_path):
    rows = [i if i % 2 else (i, i) for i in range(2000)]  # a block, and so a message, each: more than its socket holds
    rdd = spark.sparkContext.parallelize(rows, 2)
    with start(spark, record_slowly, tmp_path, nodes=1) as cluster:
        (child,) = running(tmp_path, 1)["child"]
        os.kill(child, signal.SIGSTOP)
        threading.Timer(35, os.kill, (child, signal.SIGCONT)).start()
        cluster.train(rdd)
    (node,) = cluster.summary["nodes"]
    assert [report["metrics"] for report in node["metrics"]] == [{"rows": 2000}]


def use(cluster, **options):
    with cluster:
        cluster.train(cluster.sc.parallelize(range(10)), **options)


def test_nodes_that_do_not_read_or_end_are_named_and_ended(spark, tmp_path):
    cluster = start(spark, train_functions.hang_with_grandchild, tmp_path)
    pids = running(tmp_path, 2)
    with pytest.raises(errors.FeedTimeoutError, match=r"worker:\d .* neither read nor answered .* feed_timeout=2 s"):
        use(cluster, feed_timeout=2)
    assert wait_until(lambda: gone([p for kind in pids.values() for p in kind]), CLEAN_SECONDS)

    (tmp_path / "second").mkdir()
    cluster = start(spark, train_functions.hang_with_grandchild, tmp_path / "second", InputMode.TENSORFLOW, nodes=1)
    with pytest.raises(errors.ShutdownTimeoutError, match=r"\['worker:0'\] have not finished within timeout=1 s"):
        cluster.shutdown(grace_secs=300, timeout=1)


def test_a_cancelled_job_ends_the_nodes_that_it_holds(spark, tmp_path):
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


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"nodes": 5}, errors.NotEnoughSlotsError, "needs 5 task slots"),
        ({"nodes": 2, "num_ps": 2}, errors.ParamError, "leaves no worker"),
        ({"mode": "FAST"}, errors.ParamError, "input_mode must be"),
        ({"num_ps": 1, "driver_ps_nodes": True}, errors.ParamError, "driver_ps_nodes=True needs"),
        ({"queues": "input"}, errors.ParamError, "queues must be names"),
        ({"reservation_timeout": 0}, errors.ParamError, "reservation_timeout must be positive"),
    ],
)
def test_bad_arguments_fail_before_anything_starts(spark, tmp_path, options, error, message):
    began = time.monotonic()
    with pytest.raises(error, match=message):
        start(spark, train_functions.do_nothing, tmp_path, **options)
    assert time.monotonic() - began < 5


def test_a_function_that_cannot_be_sent_or_called(spark):
    lock = threading.Lock()
    with pytest.raises(errors.TrainFnPickleError, match="captured variable 'lock'"):
        TFCluster.run(spark.sparkContext, lambda args, ctx: lock, None, 1)
    with pytest.raises(errors.ParamError, match="map_fun must be a function"):
        TFCluster.run(spark, None, None, 1)
    with pytest.raises(errors.ParamError, match="sc must be a SparkContext"):
        TFCluster.run("local", train_functions.do_nothing, None, 1)
