"""Fits of one search take the rows from where the first of them has left them; what they learn is the same."""

import shutil
from pathlib import Path

import pytest
from conftest import CLUSTER, on, our_files
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import TrainValidationSplit
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, TFEstimator

EPOCHS = 2


def rows(spark):
    """Rows with a null and a NaN, which are left out, in uneven partitions."""
    df = spark.range(90).select(
        F.array(F.rand(1), F.rand(2)).alias("features"),
        F.when(F.col("id") == 7, None).when(F.col("id") == 8, float("nan")).otherwise(F.rand(3)).alias("label"),
        (F.col("id") % 9 == 0).alias("held_out"),
        (F.col("id") % 2 == 1).alias("odd"),
    )
    return df.repartition(3).cache()


def regression():
    import keras

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")
    return model


def estimator(**params):
    common = {"epochs": EPOCHS, "batchSize": 8, "verbose": 0, "validationIndicatorCol": "held_out"}
    return KerasEstimator(model=regression, handleInvalid="skip", **common, **params)


def sources(model):
    return {node["rows_from"] for node in model.summary.nodes}


def kept_places():
    return [path for path in our_files() if Path(path).name.startswith("tfos_ml-rows-")]


@on(CLUSTER)
@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.corner("rows kept on hosts between the fits of a search")
def test_later_fits_take_no_rows_from_spark_and_learn_the_same_on_several_executors(any_spark):
    df = rows(any_spark)
    one = estimator(clusterSize=2)
    maps = [{one.seed: 3}, {one.seed: 4}, {one.seed: 3, one.epochs: 1}]
    fitted = dict(one.fitMultiple(df, maps))
    assert [sources(fitted[i]) for i in range(3)] == [{"spark"}, {"host"}, {"host"}]
    for i, params in enumerate(maps):
        alone = one.fit(df, params)
        assert fitted[i].history == alone.summary.history
        for fact in ("rows", "validationRows", "skippedRows", "steps"):
            assert getattr(fitted[i].summary, fact) == getattr(alone.summary, fact)
    assert fitted[1].summary.skippedRows == 2
    assert not kept_places()
    df.unpersist()


@pytest.mark.filterwarnings("ignore:.*left out")
def test_rows_by_other_columns_or_on_more_nodes_are_others(spark):
    df = rows(spark)
    one = estimator()
    maps = [{one.clusterSize: 1}, {one.clusterSize: 2}, {one.padValue: 1.0}, {one.validationIndicatorCol: "odd"}]
    found = [sources(model) for _, model in sorted(one.fitMultiple(df, maps))]
    assert found == [{"spark"}, {"spark"}, {"host"}, {"spark"}]
    df.unpersist()


@pytest.mark.filterwarnings("ignore:.*left out")
def test_rows_that_have_gone_come_from_spark_again(spark):
    df = rows(spark)
    one = estimator()
    fits = one.fitMultiple(df, [{one.seed: seed} for seed in (1, 2, 2)])
    next(fits)
    for place in kept_places():
        shutil.rmtree(place)
    _, second = next(fits)
    _, third = next(fits)
    assert sources(second) == sources(third) == {"spark"}
    assert second.summary.history == third.summary.history
    assert not kept_places()
    df.unpersist()


@pytest.mark.chaos
@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_search_with_threads_leaves_nothing(spark):
    df = rows(spark).where("label is not null")
    one = estimator()
    grid = [{one.seed: seed} for seed in range(4)]
    evaluator = RegressionEvaluator(metricName="var")
    search = TrainValidationSplit(
        estimator=one, estimatorParamMaps=grid, evaluator=evaluator, parallelism=2, collectSubModels=True, seed=5
    )
    tuned = search.fit(df.where("not isnan(label)"))
    assert [sources(model) for model in tuned.subModels].count({"host"}) >= 1
    assert not kept_places()


def test_nobody_keeps_what_a_fit_that_fails_had(spark):
    def fail_at_first(args, ctx):
        import os

        for _ in ctx.dataset():
            pass
        if "FAIL" in os.environ:
            raise ValueError("no luck")

    df = spark.range(20).select(F.col("id").cast("float").alias("features"))
    job = TFEstimator(trainFn=fail_at_first, verbose=0)
    fits = job.fitMultiple(df, [{job.nodeEnv: env} for env in ({"FAIL": "1"}, {}, {})])
    with pytest.raises(Exception, match="no luck"):
        next(fits)
    with pytest.warns(UserWarning, match="exported no model"):
        found = [sources(next(fits)[1]) for _ in range(2)]
    assert found == [{"spark"}, {"host"}]
    assert not kept_places()


def test_streamed_rows_are_not_kept(spark):
    def stream(args, ctx):
        feed, total = ctx.get_data_feed(), 0
        while not feed.should_stop():
            total += len(feed.next_batch(10))
        ctx.report({"total": float(total)})

    df = spark.range(50_000).select(F.array_repeat(F.col("id").cast("float"), 40).alias("features"))
    job = TFEstimator(trainFn=stream, verbose=0)
    with pytest.warns(UserWarning, match="exported no model"):
        models = [model for _, model in job.fitMultiple(df, [{}, {}])]
    assert [model.summary.history["total"] for model in models] == [[50_000.0]] * 2
    assert not kept_places()


@pytest.mark.chaos
def test_fits_without_fork_servers_keep_nothing(spark):
    spark.conf.set("spark.tfos_ml.idleSeconds", "0")
    try:
        df = spark.range(20).select(F.col("id").cast("float").alias("features"))
        job = TFEstimator(trainFn=lambda args, ctx: list(ctx.dataset()) and None, verbose=0)
        with pytest.warns(UserWarning, match="exported no model"):
            assert [sources(model) for _, model in job.fitMultiple(df, [{}, {}])] == [{"spark"}] * 2
    finally:
        spark.conf.unset("spark.tfos_ml.idleSeconds")


def test_an_iterator_that_nobody_wants_lets_go_of_the_rows(spark):
    df = spark.range(20).select(F.col("id").cast("float").alias("features"))
    job = TFEstimator(trainFn=lambda args, ctx: list(ctx.dataset()) and None, verbose=0)
    fits = job.fitMultiple(df, [{}, {}])
    with pytest.warns(UserWarning, match="exported no model"):
        next(fits)
    assert kept_places()
    del fits
    assert not kept_places()
