"""Clusters where executors come and go, and Spark refuses barrier jobs."""

from __future__ import annotations

import os

import numpy as np
import pytest
import small_models
import train_functions
from conftest import CLUSTER
from pyspark.sql import functions as F
from supervisors import supervisor_of

from tfos_ml import InputMode, KerasEstimator, TFCluster, TFEstimator, errors
from tfos_ml.common.spark_api import session_thread


@pytest.fixture
def spark(sessions):
    return sessions.get(
        CLUSTER,
        spark_dynamicAllocation_enabled="true",
        spark_dynamicAllocation_shuffleTracking_enabled="true",
        spark_dynamicAllocation_minExecutors="0",
        spark_dynamicAllocation_initialExecutors="1",
        spark_dynamicAllocation_executorIdleTimeout="15s",
    )


def record(args, ctx):
    feed, rows = ctx.get_data_feed(), []
    while not feed.should_stop():
        rows += [row[0] for row in feed.next_batch(100)]
    ctx.barrier("read")
    ctx.report({"rows_here": len(rows), "total": sum(rows)}, epoch=0)


def test_nodes_meet_at_the_driver_on_several_executors(spark):
    df = spark.range(0, 300, 1, 5).withColumnRenamed("id", "features")
    model = TFEstimator(trainFn=record, clusterSize=3, verbose=0).fit(df)
    reports = [node["metrics"][0]["metrics"] for node in model.summary.nodes]
    assert sum(r["rows_here"] for r in reports) == 300
    assert sum(r["total"] for r in reports) == sum(range(300))


@pytest.mark.chaos
def test_two_fits_with_slots_for_one_follow_each_other_on_several_executors(spark):
    df = spark.range(0, 60, 1, 3).withColumnRenamed("id", "features")
    estimator, models = TFEstimator(trainFn=record, clusterSize=3, verbose=0), []
    threads = [session_thread(spark, lambda: models.append(estimator.copy().fit(df))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [model.summary.rows for model in models] == [60, 60]


def double(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([2 * x for x in feed.next_batch(10)])


def test_a_cluster_that_is_fed_on_several_executors(spark):
    with TFCluster.run(spark.sparkContext, double, None, 3, input_mode=InputMode.SPARK) as cluster:
        doubled = cluster.inference(spark.sparkContext.parallelize(range(100), 7))
        assert doubled.collect() == [2 * x for x in range(100)]


@pytest.mark.chaos
def test_a_model_trains_and_scores_on_several_executors(spark):
    df = spark.range(100).select((F.col("id") / 100).alias("features"), (F.col("id") / 50).alias("label"))
    scored = KerasEstimator(model=small_models.linear, clusterSize=2, epochs=60, verbose=0).fit(df).transform(df)
    error = np.abs([row.prediction - row.label for row in scored.collect()]).max()
    assert error < 0.2


def test_first_failure_ends_all_nodes_on_several_executors(spark):
    df = spark.range(30).withColumnRenamed("id", "features")
    job = TFEstimator(trainFn=train_functions.fail_on_one, clusterSize=3, verbose=0)
    with pytest.raises(errors.TrainFnError, match="worker:1 .* ZeroDivisionError: the user's own mistake"):
        job.setTfArgs({"fail_on": "worker:1"}).fit(df)


@pytest.mark.chaos
def test_killed_task_is_not_tried_again_alone_on_several_executors(spark, tmp_path):
    df = spark.range(30).withColumnRenamed("id", "features")

    def kill_the_supervisor(args, ctx):
        import signal
        import time

        if ctx.worker_num == 1:
            os.kill(supervisor_of(ctx), signal.SIGKILL)
        time.sleep(100)

    with pytest.raises(errors.NodeLostError, match="worker:1 .* died"):
        TFEstimator(trainFn=kill_the_supervisor, clusterSize=2, verbose=0).fit(df)


@pytest.mark.chaos
def test_missing_nodes_are_named_on_several_executors(spark, tmp_path):
    @F.udf("long")
    def hold(value):
        import time

        while not (tmp_path / "release").exists():
            time.sleep(0.05)
        return value

    holder = session_thread(spark, lambda: spark.range(0, 2, 1, 2).select(hold("id")).collect())
    holder.start()
    try:
        df = spark.range(30).withColumnRenamed("id", "features")
        with pytest.raises(errors.ReservationTimeoutError, match=r"1 of 3 nodes have not started .*\['worker:\d'\]"):
            TFEstimator(trainFn=record, clusterSize=3, reservationTimeout=15, verbose=0).fit(df)
    finally:
        (tmp_path / "release").touch()
        holder.join(60)


def test_more_nodes_than_there_can_be_slots_on_several_executors(spark):
    with pytest.raises(errors.NotEnoughSlotsError, match="needs 5 task slots at once, but Spark has 4"):
        TFEstimator(trainFn=record, clusterSize=5).fit(spark.range(3).withColumnRenamed("id", "features"))
