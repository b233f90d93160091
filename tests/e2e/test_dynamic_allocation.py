"""Clusters where executors come and go, and Spark refuses barrier jobs.

Jobs that are no barrier jobs are in make test: ``test_node_faults.py``.
"""

from __future__ import annotations

import pytest
from conftest import CLUSTER

from tfos_ml import InputMode, TFCluster, TFEstimator, errors

pytestmark = pytest.mark.chaos  # a session of its own


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
    with pytest.raises(errors.NotEnoughSlotsError, match="needs 5 task slots at once, but Spark has 4"):
        TFEstimator(trainFn=record, clusterSize=5).fit(df)


def double(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([2 * x for x in feed.next_batch(10)])


def test_a_cluster_that_is_fed_on_several_executors(spark):
    with TFCluster.run(spark.sparkContext, double, None, 3, input_mode=InputMode.SPARK) as cluster:
        doubled = cluster.inference(spark.sparkContext.parallelize(range(100), 7))
        assert doubled.collect() == [2 * x for x in range(100)]
