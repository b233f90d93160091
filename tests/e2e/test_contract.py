"""What every stage owes Spark ML: the habits of pyspark's own stages. What needs no Spark is in unit/test_params.py."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, TFEstimator

every_estimator = pytest.mark.parametrize("estimator", [TFEstimator, KerasEstimator])


pytestmark = pytest.mark.usefixtures("keras")


def mean(args, ctx):
    import tensorflow as tf

    total = sum(float(tf.reduce_sum(features)) for features in ctx.dataset())
    module = tf.Module()
    module.mean = tf.Variable(total / ctx.row_count)
    module.serve = tf.function(lambda features: {"y": tf.reduce_sum(features, 1) * 0 + module.mean + args.batchSize})
    spec = tf.TensorSpec([None, 2], tf.float32, "features")
    ctx.export_saved_model(module, signatures={"serving_default": module.serve.get_concrete_function(features=spec)})


def read(args, ctx):
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(10)


def linear():
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, name="y")])
    model.compile("sgd", "mse")
    return model


def make(estimator, **params):
    program = {"trainFn": mean} if estimator is TFEstimator else {"model": linear, "labelCol": "y"}
    return estimator(**program, verbose=0, **params)


def rows(spark):
    vector = F.array(F.col("id") * 1.0, F.lit(1.0))
    return spark.range(0, 20, 1, 2).select("id", vector.alias("x"), F.lit(1.0).alias("y"))


@every_estimator
def test_fit_changes_neither_the_estimator_nor_the_rows(spark, estimator):
    df = rows(spark)
    job = make(estimator, featuresCol="x", predictionCol="p")
    before = ({p.name: v for p, v in job.extractParamMap().items()}, dict(vars(job)))
    model = job.fit(df, {job.batchSize: 7, job.predictBatchSize: 8, job.predictionCol: "q"})
    assert ({p.name: v for p, v in job.extractParamMap().items()}, dict(vars(job))) == before
    assert (model.getPredictBatchSize(), model.getPredictionCol(), model.getFeaturesCol()) == (8, "q", "x")
    assert model.uid == job.uid

    scored = model.transform(df, {job.predictionCol: "r"})  # as CrossValidator does
    assert scored.columns == [*df.columns, "r"]
    assert model.getPredictionCol() == "q"
    assert scored.schema == model.copy({model.predictionCol: "r"}).transformSchema(df.schema)
    if estimator is KerasEstimator:  # whose model is known before the fit
        assert job.copy({job.predictionCol: "r"}).transformSchema(df.schema) == scored.schema

    with_vectors = spark.createDataFrame([(Vectors.dense(1, 2),), (Vectors.sparse(2, {0: 1.0}),)], ["x"]).coalesce(1)
    of_arrays = spark.createDataFrame([([1.0, 2.0],), ([1.0, 0.0],)], "x array<double>").coalesce(1)
    assert model.transform(with_vectors).select("q").collect() == model.transform(of_arrays).select("q").collect()


def test_missing_columns_are_spark_errors_without_a_job(spark):
    job = make(TFEstimator, featuresCol="nowhere")
    for act in (job.fit, lambda df: job.transformSchema(df.schema)):
        with pytest.raises(IllegalArgumentException, match="'nowhere' does not exist"):
            act(rows(spark))


@pytest.mark.corner("fitMultiple computes the rows once")
def test_several_param_maps_share_rows_that_are_computed_once(spark):
    computed = spark.sparkContext.accumulator(0)

    @F.udf("double")
    def counting(value):
        computed.add(1)
        return float(value)

    df = rows(spark).withColumn("x", F.array(counting("id"), F.lit(1.0)))
    job = TFEstimator(trainFn=read, featuresCol="x", verbose=0)
    fits = job.fitMultiple(df, [{job.predictBatchSize: 3}, {job.predictBatchSize: 5}])
    with ThreadPoolExecutor(2) as pool:
        found = dict(pool.map(next, [fits, fits]))
    with pytest.raises(StopIteration):
        next(fits)
    assert {index: model.getPredictBatchSize() for index, model in found.items()} == {0: 3, 1: 5}
    assert computed.value == 20
    del fits
    assert not spark.sparkContext._jsc.getPersistentRDDs()
    assert [m.getPredictBatchSize() for m in job.fit(df, [{job.predictBatchSize: 2}])] == [2]


def test_rows_are_released_when_nobody_wants_the_models(spark):
    df = rows(spark)
    fits = make(TFEstimator).fitMultiple(df, [{}, {}])
    assert df.storageLevel.useMemory
    del fits
    assert not df.storageLevel.useMemory
