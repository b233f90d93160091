"""TFModel.transform and what surrounds it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from elsewhere import run_elsewhere
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import Normalizer, VectorAssembler
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tfos_ml import TFEstimator, TFModel, errors
from tfos_ml.inference import archive
from tfos_ml.inference.prediction import PREDICTION_SPEC_FILE

MAKE_MODELS = """
import sys
import tensorflow as tf

def save(name, function, **inputs):
    module = tf.Module()
    module.weight = tf.Variable(2.0)
    module.serve = tf.function(lambda **tensors: function(module, **tensors))
    specs = {k: tf.TensorSpec(shape, dtype, k) for k, (shape, dtype) in inputs.items()}
    tf.saved_model.save(module, f"{sys.argv[1]}/{name}", signatures=module.serve.get_concrete_function(**specs))

save("double", lambda m, x: {"y": m.weight * x}, x=([None], tf.float32))
join = lambda m, s, n: {"out": tf.strings.join([s, tf.strings.as_string(n)]), "long": n + 1}
save("used here", lambda m, x: {"y": (m.weight + 1) * x}, x=([None], tf.float32))
save("text", join, s=([None], tf.string), n=([None], tf.int64))
save("bigint", lambda m, x: {"y": x}, x=([None], tf.int64))
save("predictor", lambda m, x: {"prediction": m.weight * x}, x=([None, 2], tf.float32))
save("raw", lambda m, x: {"raw": m.weight * x, "probability": x}, x=([None, 2], tf.float32))
save("risky", lambda m, x: {"good": x + 1, "bad": x // (x - x)}, x=([None], tf.int32))
save("wide", lambda m, x: {"total": tf.reduce_sum(x, 1), "last": x[:, -1]}, x=([None, None], tf.float64))
save("short", lambda m, x: {"y": x[:-1]}, x=([None], tf.float32))
save("four", lambda m, x: {"y": x - tf.reduce_min(x)}, x=([4], tf.float32))
save("scalar", lambda m, x: {"y": tf.strings.length(x)}, x=([], tf.string))
"""


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """SavedModels made elsewhere, by plain TensorFlow in another process."""
    directory = tmp_path_factory.mktemp("models")
    run_elsewhere(MAKE_MODELS, str(directory))
    return directory


def test_keeps_columns_and_declares_the_schema(spark, models):
    numbers = spark.range(0, 1000, 1, 2).select("id", F.col("id").cast("float").alias("features"))
    scored = TFModel(exportDir=str(models / "double")).transform(numbers)
    assert scored.schema.simpleString() == "struct<id:bigint,features:float,prediction:float>"
    assert TFModel(exportDir=str(models / "double")).transformSchema(numbers.schema).names == scored.columns
    assert scored.where("prediction != 2 * id").count() == 0
    assert scored.count() == 1000
    assert TFModel(exportDir=str(models / "double")).transform(numbers.where("id < 0")).collect() == []


@pytest.mark.parametrize(
    ("columns", "name", "params", "message"),
    [
        (["string(id) features"], "double", {}, r"'features' holds string, but input 'x' expects float32\(batch\)"),
        (["'a' features"], "scalar", {}, r"'x': 'string\(\)'. are scalars without a batch.*tf.map_fn"),
        (["id features", "id prediction"], "double", {}, r"\['prediction'\] exist already"),
        (["id"], "double", {"inputMapping": {"id": "z"}}, r"inputs \{x: float32\(batch\)\}.*Columns: \['id'\]"),
        (
            ["'x' a", "id b"],
            "text",
            {"inputMapping": {"a": "s", "b": "n"}},
            "has 2 outputs; bind each with outputMapping",
        ),
        (["float(id) features"], "short", {}, r"returned shape \(2,\) for output 'y', given 3 rows"),
    ],
)
def test_misfits_are_errors_that_name_them(spark, models, columns, name, params, message):
    """All but the last, which only the rows show, are found on the driver."""
    df = spark.range(0, 3, 1, 1).selectExpr(*columns)
    with pytest.raises(Exception if name == "short" else errors.TfosMlError, match=message):
        TFModel(exportDir=str(models / name), **params).transform(df).collect()


def test_rows_with_null_or_infinity(spark, models):
    rows = [(1, 1.0), (2, None), (3, 3.0), (4, float("inf"))]
    df = spark.createDataFrame(rows, "id int, features float").coalesce(1)
    model = TFModel(exportDir=str(models / "double"))
    with pytest.raises(Exception, match="Column 'features' has 1 null value"):
        model.transform(df).collect()
    with pytest.raises(Exception, match="Column 'features' has 1 x infinity"):
        model.transform(df.where("id != 2")).collect()
    expected = {"skip": [(1, 2.0), (3, 6.0)], "keep": [(1, 2.0), (2, None), (3, 6.0), (4, float("inf"))]}
    for policy, found in expected.items():
        scored = model.copy({model.handleInvalid: policy}).transform(df)
        assert [(r.id, r.prediction) for r in scored.collect()] == found


def test_a_model_of_a_fixed_batch(spark, models):
    """The rows come by fours; the last three, and one row more."""
    numbers = spark.range(0, 7, 1, 1).select(F.col("id").cast("float").alias("features"))
    model = TFModel(exportDir=str(models / "four"))
    assert [r.prediction for r in model.transform(numbers).collect()] == [0, 1, 2, 3, 0, 1, 2]


def test_vectors_for_the_next_stage(spark, models, tmp_path):
    """Normalizer takes no arrays."""
    df = spark.createDataFrame([([float(i), 1.0],) for i in range(10)], "x array<float>")
    first = TFModel(exportDir=str(models / "predictor"), inputMapping={"x": "x"}, vectorOutputs=["prediction"])
    first.setOutputMapping({"prediction": "v"})
    assert isinstance(first.transformSchema(df.schema)["v"].dataType, VectorUDT)
    fitted = Pipeline(stages=[first, Normalizer(p=1.0, inputCol="v", outputCol="n")]).fit(df)
    fitted.save(str(tmp_path / "p"))
    scored = PipelineModel.load(str(tmp_path / "p")).transform(df)
    assert scored.schema["v"].dataType == VectorUDT()
    row = scored.where("x[0] = 3").first()
    assert (list(row.v), list(row.n)) == ([6.0, 2.0], [0.75, 0.25])


@pytest.fixture
def predictor(models):
    """A SavedModel of KerasEstimator whose wide, plain output happens to be called "prediction"."""
    directory = models / "predictor"
    (directory / PREDICTION_SPEC_FILE).write_text(json.dumps({"kind": "plain", "from_logits": False}))
    return str(directory)


def test_columns_are_kept_whatever_their_names(spark, models, predictor):
    left = spark.createDataFrame([(1, [1.0, 2.0], "x")], "id int, features array<float>, `a``b` string")
    right = spark.createDataFrame([(1, 7, 8)], "id int, __tfos_ml_outputs int, __TFOS_ML_OUTPUTS_0 int")
    df = left.join(right, left.id == right.id)
    several = TFModel(exportDir=str(models / "raw"), outputMapping={"raw": "r.`s", "probability": "p"}).transform(df)
    assert several.columns == [*df.columns, "r.`s", "p"]
    assert tuple(several.first()) == (1, [1.0, 2.0], "x", 1, 7, 8, [2.0, 4.0], [1.0, 2.0])
    one = TFModel(exportDir=predictor, predictionCol="p`q").transform(df)
    assert one.columns == [*df.columns, "p`q"]
    assert tuple(one.first()) == (1, [1.0, 2.0], "x", 1, 7, 8, [2.0, 4.0])


def test_columns_that_differ_by_case_alone_are_two_only_where_spark_says_so(spark, models, predictor):
    df = spark.createDataFrame([([1.0, 2.0], 5)], "features array<float>, PREDICTION int")
    one = TFModel(exportDir=predictor)
    several = TFModel(exportDir=str(models / "raw"), outputMapping={"raw": "Out", "probability": "out"})
    for model in (one, several):
        with pytest.raises(errors.ParamError, match=r"differ only in case .*caseSensitive=false"):
            model.transform(df)
    spark.conf.set("spark.sql.caseSensitive", True)
    try:
        assert tuple(one.transform(df).first()) == ([1.0, 2.0], 5, [2.0, 4.0])
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_fields_of_structs_by_dotted_name(spark, models):
    df = spark.sql("SELECT named_struct('b', named_struct('c', id, 'd', 'text')) AS a FROM range(3)")
    model = TFModel(exportDir=str(models / "bigint"), featuresCol="a.b.c")
    assert [row.prediction for row in model.transform(df).collect()] == [0, 1, 2]
    own = df.withColumn("a.b.c", F.lit(7).cast("bigint"))  # a column of that very name goes first
    assert {row.prediction for row in model.transform(own).collect()} == {7}
    with pytest.raises(errors.ColumnNotFoundError, match="'x' does not exist"):
        model.setFeaturesCol("a.b.x").transform(df)


def test_model_that_is_transformed_with_often_is_one_artifact_and_one_copy(spark, models):
    """Red before: eight of each."""
    before = artifacts_and_copies(spark)
    df = spark.range(0, 3, 1, 1).selectExpr("float(id) features")
    model = TFModel(exportDir=str(models / "used here"))
    for number in range(8):
        model = model if number < 4 else TFModel(exportDir=str(models / "used here"))
        assert [row.prediction for row in model.transform(df).collect()] == [0.0, 3.0, 6.0]
    assert [len(now - then) for now, then in zip(artifacts_and_copies(spark), before, strict=True)] == [1, 1]


def artifacts_and_copies(spark) -> tuple[set[Path], set[Path]]:
    """What the driver has sent, and what executors in its process have unpacked."""
    files = Path(spark.sparkContext._temp_dir)
    folders = files.parent.glob(f"*/{archive.FOLDER}")
    return {*files.glob("tfos_ml-*")}, {path for folder in folders for path in folder.iterdir() if path.is_dir()}


def train_keras(args, ctx):
    import keras

    keras.utils.set_random_seed(0)
    inputs = {"a": keras.layers.Input((1,), name="a"), "b": keras.layers.Input((2,), name="b")}
    hidden = keras.layers.Concatenate()(list(inputs.values()))
    outputs = {"up": keras.layers.Dense(1, name="one")(hidden), "down": keras.layers.Dense(2, name="two")(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    ctx.export_saved_model(model)


@pytest.mark.corner("TFEstimator in a Pipeline, several inputs and outputs")
def test_fit_and_transform_in_a_pipeline_with_several_inputs_and_outputs(spark, tmp_path):
    """The export is published whole."""
    target = tmp_path / "models" / "v1"
    y = F.array(F.lit(1.0), F.col("id") / 10).alias("y")
    df = spark.range(0, 20, 1, 2).select(F.col("id").cast("double").alias("x"), y)
    names = {"inputMapping": {"v": "a", "y": "b"}, "outputMapping": {"up": "u", "down": "d"}}
    estimator = TFEstimator(trainFn=train_keras, exportDir=str(target), verbose=0, **names)
    fitted = Pipeline(stages=[VectorAssembler(inputCols=["x"], outputCol="v"), estimator]).fit(df)
    scored = fitted.transform(df)
    assert scored.columns == ["x", "y", "v", "u", "d"]
    assert scored.count() == 20
    model, row = fitted.stages[-1], scored.orderBy("x").collect()[7]
    here = model.predict({"v": np.array([[7.0]]), "y": np.array([[1.0, 0.7]])})
    np.testing.assert_allclose(here["u"][0], row.u, rtol=1e-6)
    np.testing.assert_allclose(here["d"][0], row.d, rtol=1e-6)
    assert set(model.signature().inputs) == {"a", "b"}
    assert (target / "saved_model.pb").is_file()
    assert [p.name for p in target.parent.iterdir()] == ["v1"]
    read = TFModel(exportDir=str(target), **names).transform(fitted.stages[0].transform(df))
    assert sorted(read.collect()) == sorted(scored.collect())
    with pytest.raises(errors.DestinationError, match="exists and is not empty"):
        estimator.fit(fitted.stages[0].transform(df))


def test_what_is_not_selected_is_not_computed(spark, models):
    df = spark.range(0, 3, 1, 1).selectExpr("id", "int(id) x")
    both = TFModel(
        exportDir=str(models / "risky"), inputMapping={"x": "x"}, outputMapping={"good": "g", "bad": "b"}
    ).transform(df)
    assert [row.id for row in both.select("id").collect()] == [0, 1, 2]
    with pytest.raises(Exception, match="[Dd]ivision by zero"):
        both.select("b").collect()
    only_good = TFModel(exportDir=str(models / "risky"), featuresCol="x", outputMapping={"good": "g"})
    good = only_good.transform(df)
    assert [row.g for row in good.collect()] == [1, 2, 3]


def test_wide_sparse_vectors_stay_sparse_on_their_way(spark, models):
    width = 10_000
    vectors = [Vectors.sparse(width, {i: 1.0, width - 1: float(i)}) for i in range(100)]
    vectors += [Vectors.dense(np.ones(width)), Vectors.sparse(width, {}), None]
    df = spark.createDataFrame([(v,) for v in vectors], StructType().add("features", VectorUDT())).coalesce(1)
    names = {"outputMapping": {"total": "t", "last": "l"}, "handleInvalid": "keep", "predictBatchSize": 64}
    scored = TFModel(exportDir=str(models / "wide"), **names).transform(df)
    found = [tuple(row) for row in scored.select("t", "l").collect()]
    assert found == [*((1.0 + i, float(i)) for i in range(100)), (width, 1.0), (0.0, 0.0), (None, None)]
    assert "array" not in scored._jdf.queryExecution().executedPlan().toString()  # no vector_to_array in the JVM


@pytest.mark.corner("transform of a structured stream")
def test_streams(spark, models, tmp_path):
    for i in range(3):
        spark.range(i * 10, i * 10 + 10).selectExpr("id", "float(id) features").write.parquet(str(tmp_path / f"in/{i}"))
    schema = spark.read.parquet(str(tmp_path / "in/0")).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in/*"))
    scored = TFModel(exportDir=str(models / "double")).transform(stream)
    assert scored.isStreaming
    query = scored.writeStream.format("memory").queryName("scored").trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    rows = spark.table("scored").orderBy("id").collect()
    assert [(row.id, row.prediction) for row in rows] == [(i, 2.0 * i) for i in range(30)]


@pytest.mark.corner("registerUDF: a SQL function")
def test_sql(spark, models):
    spark.range(4).selectExpr("id", "if(id = 2, null, id) x", "array(1.5, double(id)) m").createOrReplaceTempView("t")
    TFModel(exportDir=str(models / "double"), handleInvalid="keep").registerUDF(spark, "twice")
    found = spark.sql("SELECT id, twice(x) AS y FROM t WHERE id > 0 ORDER BY id").collect()
    assert [(row.id, row.y) for row in found] == [(1, 2.0), (2, None), (3, 6.0)]
    many = TFModel(
        exportDir=str(models / "text"), inputMapping={"a": "s", "b": "n"}, outputMapping={"out": "o", "long": "l"}
    )
    many.registerUDF(spark, "join")
    row = spark.sql("SELECT join(cast(id AS string), id) AS both FROM t WHERE id = 3").first()
    assert row.both.asDict() == {"o": "33", "l": 4}
    spark.catalog.dropTempView("t")
