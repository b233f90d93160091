"""TFCluster: programs that lead the cluster themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import CLUSTER
from pyspark.sql import functions as F

from tfos_ml import InputMode, TFCluster, errors


def start(spark, map_fun, args=None, nodes=2, **options):
    options = {"input_mode": InputMode.SPARK, **options}
    return TFCluster.run(spark.sparkContext, map_fun, args, nodes, **options)


def square(args, ctx):
    """Answer each row; how depends on what it is."""
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(128)
        if isinstance(batch[0], tuple):  # of a DataFrame: id, text
            feed.batch_results([{"twice": text * 2, "square": number**2} for number, text in batch])
        else:
            feed.batch_results([x * x for x in batch])


@pytest.mark.corner("TFCluster.inference: one result a row, in order")
def test_inference_gives_one_result_a_row_in_order(spark):
    sc = spark.sparkContext
    with start(spark, square) as cluster:
        squares = cluster.inference(sc.parallelize(range(10_000), 10))
        assert squares.collect() == [x * x for x in range(10_000)]
        assert squares.take(5) == [0, 1, 4, 9, 16]
        df = spark.range(0, 3000, 1, 5).withColumn("text", F.concat(F.lit("ü"), F.col("id")))
        out = cluster.inference(df, schema="square long, twice string")
        assert out.columns == ["id", "text", "square", "twice"]
        rows = out.collect()
        assert [r.id for r in rows] == list(range(3000))
        assert all(r.square == r.id**2 and r.twice == r.text * 2 for r in rows)
    assert cluster.summary["rows"] > 10_000 + 3000  # and what take() asked for
    with pytest.raises(errors.ClusterClosedError, match="has ended"):
        cluster.inference(df)


def record_rows(args, ctx):
    """Write down every row that comes."""
    feed, rows = ctx.get_data_feed(), []
    while not feed.should_stop():
        rows += feed.next_batch(100)
    with open(f"{args['directory']}/{ctx.task_index}.json", "w") as file:
        json.dump([[int(x) for x in row] for row in rows], file)


@pytest.mark.corner("TFCluster: each row as often as asked")
def test_every_row_is_trained_on_exactly_as_often_as_asked_on_several_executors(sessions, tmp_path):
    spark = sessions.get(CLUSTER)  # in local mode Spark tries no task again
    sc = spark.sparkContext
    computed = sc.accumulator(0)
    failed_once = tmp_path / "failed once"

    def compute(partition, rows):
        for i, row in enumerate(rows):
            if partition == 3 and i == 700 and not failed_once.exists():
                failed_once.touch()
                raise RuntimeError("this feed task fails once, when a part of its rows has been sent")
            computed.add(1)
            yield row

    pairs = sc.parallelize([(i, -i) for i in range(6007)], 6).mapPartitionsWithIndex(compute)
    with start(spark, record_rows, {"directory": str(tmp_path)}) as cluster:
        assert [node["job_name"] for node in cluster.cluster_info] == ["worker", "worker"]
        cluster.train(pairs, num_epochs=3)
        assert computed.value == 6007  # Spark counts what tasks do that succeed
        frame = spark.range(10_000, 10_500, 1, 3).select("id", F.array(F.col("id")).alias("list"))
        cluster.train(frame.select("id", F.col("id") * 2))
        cluster.train(sc.emptyRDD())
        cluster.train(spark.range(0))
    seen = [tuple(row) for path in tmp_path.glob("*.json") for row in json.loads(path.read_text())]
    assert sorted(seen) == sorted([(i, -i) for i in range(6007)] * 3 + [(i, 2 * i) for i in range(10_000, 10_500)])
    assert failed_once.exists()
    assert cluster.summary["rows"] == 6007 + 500
    cluster.shutdown()  # again is fine


def add_up(args, ctx):
    """Add up the columns of a queue of one's own, as arrays by tensor name."""
    feed = ctx.get_data_feed(qname_in="named", input_mapping={"vector": "x", "number": "n"})
    totals = np.zeros(4)
    while not feed.should_stop():
        batch = feed.next_batch(7)
        assert batch["x"].shape == (len(batch["n"]), 3)
        totals += [*batch["x"].sum(axis=0), batch["n"].sum()]
    ctx.report(dict(zip("abcn", totals, strict=True)))


def test_named_queues_and_mapped_inputs_of_every_kind_of_row(spark):
    from pyspark.ml.linalg import Vectors

    vectors = [Vectors.dense(i, 0.0, 1.0) if i % 2 else Vectors.sparse(3, {0: i, 2: 1.0}) for i in range(30)]
    df = spark.createDataFrame([(v, i, "unused") for i, v in enumerate(vectors)], ["vector", "number", "other"])
    rows = [{"number": i, "vector": [float(i), 0.0, 1.0]} for i in range(30)]
    pairs = [(np.array([i, 0.0, 1.0]), i) for i in range(30)]
    with start(spark, add_up, nodes=1, queues=["input", "named"]) as cluster:
        for data in (df, spark.sparkContext.parallelize(rows, 2), spark.sparkContext.parallelize(pairs, 2)):
            cluster.train(data, num_epochs=2, qname="named")
        with pytest.raises(errors.ParamError, match=r"qname must be one of .*\['input', 'named'\].* Got: 'nosuch'"):
            cluster.train(df, qname="nosuch")
        with pytest.raises(errors.ColumnTypeError, match="Column 'm' has type map"):
            cluster.train(df.select(F.create_map("other", "number").alias("m")))
        address = cluster._control.address
        assert address.token not in f"{cluster.cluster_info} {address} {vars(cluster)}"
    total = 6 * sum(range(30))
    (metrics,) = cluster.summary["nodes"][0]["metrics"]
    assert metrics["metrics"] == {"a": total, "b": 0, "c": 6 * 30, "n": total}


def fail_when_told(args, ctx):
    """Fail at the row 13, or at the end of the feed."""
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        for row in feed.next_batch(10):
            if row == 13 and args["how"] == "while":
                raise ZeroDivisionError("the user's own mistake")
    if args["how"] == "after":
        raise ZeroDivisionError("the user's own mistake")


def test_failures_are_the_users_own_errors_and_another_cluster_runs_at_once(spark):
    rdd = spark.sparkContext.parallelize(range(5000), 8)
    cluster = start(spark, fail_when_told, {"how": "while"})
    with pytest.raises(errors.TrainFnError, match="ZeroDivisionError: the user's own mistake") as caught:
        cluster.train(rdd, num_epochs=1000)
    assert caught.value.role == "worker"
    assert "fail_when_told" in caught.value.traceback

    cluster = start(spark, fail_when_told, {"how": "after"}, nodes=1)
    cluster.train(rdd)
    with pytest.raises(errors.TrainFnError, match="ZeroDivisionError: the user's own mistake"):
        cluster.shutdown()
