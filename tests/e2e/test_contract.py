"""What every stage owes Spark ML: the habits of pyspark's own stages, checked on all of ours."""

from __future__ import annotations

import inspect
import json
import threading

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.ml import Estimator, Model, Pipeline
from pyspark.ml.linalg import Vectors
from pyspark.ml.param import Param
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, TFEstimator, TFModel, errors

STAGES = [TFEstimator, KerasEstimator, TFModel]
ESTIMATORS = [TFEstimator, KerasEstimator]
VALUES = {  # one that differs from the default, by Param
    "featuresCol": "f",
    "predictionCol": "p",
    "labelCol": "l",
    "weightCol": "w",
    "validationIndicatorCol": "v",
    "rawPredictionCol": "raw",
    "probabilityCol": "prob",
    "threshold": 0.25,
    "seed": 7,
    "inputMapping": {"a": "x"},
    "outputMapping": {"y": "b"},
    "labelMapping": {"a": "y"},
    "weightMapping": {"a": "y"},
    "binaryOutputs": ["y"],
    "vectorOutputs": ["y"],
    "batchSize": 3,
    "predictBatchSize": 3,
    "exportDir": "/e",
    "modelDir": "/m",
    "logDir": "/t",
    "cacheDir": "/c",
    "tensorboard": True,
    "signatureDefKey": "k",
    "handleInvalid": "skip",
    "padValue": 1.5,
    "clusterSize": 4,
    "numPS": 1,
    "driverPSNodes": True,
    "masterNode": "chief",
    "evalNode": True,
    "inputMode": "TENSORFLOW",
    "epochs": 5,
    "shuffle": False,
    "reservationTimeout": 1.5,
    "feedTimeout": 2.5,
    "maxRestarts": 2,
    "communication": "ring",
    "batchStatistics": "local",
    "checkpointSteps": 50,
    "minClusterSize": 1,
    "nodeCpus": 2,
    "nodeGpus": 1,
    "nodeEnv": {"A": "b"},
    "verbose": 0,
    "modelArgs": {"units": 3},
    "validationSplit": 0.5,
    "classWeight": {0: 1.0, 1: 2.5},
    "adaptLayers": ["text"],
    "adaptRows": 9,
    "initialWeights": "/i",
}
every_stage = pytest.mark.parametrize("stage", STAGES)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def own_params(stage):
    return [p.name for p in stage().params]


def suffix(name):
    return name[0].upper() + name[1:]


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


class TestParams:
    @every_stage
    def test_are_of_the_class_and_camel_case(self, stage):
        for name in own_params(stage):
            assert isinstance(getattr(stage, name), Param)
            assert name[0].islower()
            assert "_" not in name

    @every_stage
    def test_use_the_mixins_of_pyspark(self, stage):
        wanted = [HasFeaturesCol, HasPredictionCol] + ([HasLabelCol] if issubclass(stage, Estimator) else [])
        assert issubclass(stage, tuple(wanted))

    @every_stage
    def test_have_setters_getters_keywords_and_grids(self, stage):
        for name in own_params(stage):
            value = VALUES[name]
            by_setter = stage()
            assert getattr(by_setter, f"set{suffix(name)}")(value) is by_setter
            assert getattr(by_setter, f"get{suffix(name)}")() == value
            assert getattr(stage(**{name: value}), f"get{suffix(name)}")() == value
            plain = stage()
            assert getattr(plain.copy({plain.getParam(name): value}), f"get{suffix(name)}")() == value
            assert getattr(stage, f"set{suffix(name)}").__doc__
            assert getattr(stage, f"get{suffix(name)}").__doc__

    @every_stage
    def test_and_defaults_are_json(self, stage):
        values = stage(**{name: VALUES[name] for name in own_params(stage)})
        for params in (values.extractParamMap(), stage().extractParamMap()):
            for param, value in params.items():
                back = json.loads(json.dumps(value))
                assert back == value or name_keys(back) == name_keys(value), param.name

    @every_stage
    def test_are_explained_a_line_each(self, stage):
        lines = stage().explainParams().splitlines()
        assert [line.split(":")[0] for line in lines] == sorted(own_params(stage))
        assert all(" (default: " in line or " (undefined)" in line for line in lines)
        assert max(map(len, lines)) < 250  # the longest is one of pyspark's own

    @every_stage
    def test_of_another_name_bring_up_the_nearest(self, stage):
        with pytest.raises(errors.ParamError, match=r"'predictbatchsize' \(did you mean predictBatchSize"):
            stage(predictbatchsize=3)
        with pytest.raises(errors.ParamError, match=r"Unknown parameters: 'zzz'\. Known: "):
            stage().setParams(zzz=3)


def name_keys(value):
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else value


class TestConstruction:
    @every_stage
    def test_takes_keywords_only(self, stage):
        """Except for the model of a KerasEstimator."""
        with pytest.raises((TypeError, errors.ModelError)):
            stage("features")
        parameters = inspect.signature(stage.__init__).parameters.values()
        assert [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY] in ([], ["model"])

    @every_stage
    def test_leaves_fit_and_transform_to_pyspark(self, stage):
        for name in ("fit", "transform"):
            homes = [c for c in stage.__mro__ if name in vars(c)]
            assert all(c.__module__.startswith("pyspark") for c in homes)
        assert issubclass(stage, (Estimator, Model))

    @every_stage
    def test_is_writable_and_readable(self, stage):
        assert issubclass(stage, MLWritable)
        assert issubclass(stage, MLReadable)

    @every_stage
    def test_copies_are_independent(self, stage):
        made = stage(predictBatchSize=3)
        copied = made.copy({made.predictBatchSize: 4})
        copied.setPredictionCol("other")
        assert (made.getPredictBatchSize(), made.getPredictionCol()) == (3, "prediction")
        assert (copied.getPredictBatchSize(), copied.uid) == (4, made.uid)


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


def linear(rate=0.0):
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, name="y")])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def make(estimator, **params):
    program = {"trainFn": mean} if estimator is TFEstimator else {"model": linear}
    return estimator(**program, verbose=0, **params)


def rows(spark):
    vector = F.array(F.col("id") * 1.0, F.lit(1.0))
    return spark.range(0, 20, 1, 2).select("id", vector.alias("x"), F.lit(1.0).alias("y"))


def named(estimator):
    return {"featuresCol": "x", "predictionCol": "p", **({"labelCol": "y"} if estimator is KerasEstimator else {})}


@every_estimator
def test_fit_changes_neither_the_estimator_nor_the_rows(spark, estimator):
    df = rows(spark)
    job = make(estimator, **named(estimator))
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


@every_estimator
def test_missing_columns_are_spark_errors_without_a_job(spark, estimator):
    job = make(estimator, featuresCol="nowhere")
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
    found = {}

    def advance():
        index, model = next(fits)
        found[index] = model

    threads = [threading.Thread(target=advance) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    with pytest.raises(StopIteration):
        next(fits)
    assert {index: model.getPredictBatchSize() for index, model in found.items()} == {0: 3, 1: 5}
    assert computed.value == 20
    assert not spark.sparkContext._jsc.getPersistentRDDs()
    assert [m.getPredictBatchSize() for m in job.fit(df, [{job.predictBatchSize: 2}])] == [2]


def test_rows_are_released_when_nobody_wants_the_models(spark):
    job = make(TFEstimator)
    df = rows(spark)
    fits = job.fitMultiple(df, [{}, {}])
    assert df.storageLevel.useMemory
    del fits
    assert not df.storageLevel.useMemory


def test_a_pipeline_checks_and_passes_uids_on(spark):
    df = rows(spark)
    model = TFModel(exportDir="/nowhere", featuresCol="x")
    with pytest.raises(errors.ModelError, match="no SavedModel at exportDir='/nowhere'"):
        Pipeline(stages=[model]).fit(df).transform(df)
