"""Fit, transform and errors through Spark Connect: a client and a server, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from connect_server import needs_connect_server

PROGRAM = """
import sys

import train_functions
from pyspark.ml import Pipeline, PipelineModel
from pyspark.sql import SparkSession, functions as F
from tfos_ml import KerasEstimator, TFCluster, TFEstimator, TFParallel, errors
from tfos_ml.protocol import artifacts

spark = SparkSession.builder.remote(sys.argv[2]).getOrCreate()
df = spark.range(0, 100, 1, 3).select(F.col("id").cast("float").alias("features"))

def train(args, ctx):
    import tensorflow as tf

    rows = sum(int(batch.shape[0]) for batch in ctx.dataset())
    ctx.report({"rows_here": rows}, epoch=0)
    module = tf.Module()
    module.ballast = tf.Variable(tf.random.uniform([2_000_000]))  # 8 MB: more than one Arrow batch of Connect
    module.serve = tf.function(lambda features: {"y": features + rows})
    specs = tf.TensorSpec([None], tf.float32, "features")
    ctx.export_saved_model(module, signatures={"serving_default": module.serve.get_concrete_function(features=specs)})

model = TFEstimator(trainFn=train, clusterSize=2, verbose=0).fit(df)
print("history", model.summary.history, "rows", model.summary.rows)
df.write.parquet(sys.argv[1] + "/rows")  # a query of its own session, before any other has brought the model here
rows = spark.readStream.schema(df.schema).parquet(sys.argv[1] + "/rows")

def stream(name):
    places = {"path": sys.argv[1] + "/" + name, "checkpointLocation": sys.argv[1] + "/progress-" + name}
    query = model.transform(rows).writeStream.format("parquet").options(**places)
    query.trigger(availableNow=True).start().awaitTermination()
    return spark.read.parquet(places["path"]).agg(F.sum(F.col("prediction") - F.col("features"))).first()[0]

artifacts.QUERY_BYTES = 1 << 20
try:
    stream("too large")
except errors.ClusterConfigError as error:
    print(str(error).partition(".")[0])
spark.conf.set("spark.tfos_ml.sharedDir", sys.argv[1] + "/shared")
print("streamed", stream("large"))
artifacts.QUERY_BYTES = 64 << 20
add, sent = spark.addArtifacts, []
spark.addArtifacts = lambda *paths, **kinds: (sent.extend(paths), add(*paths, **kinds))
for _ in range(2):
    print("scored", model.transform(df).agg(F.sum(F.col("prediction") - F.col("features"))).first()[0])
print("sent", len(sent))
try:
    args = {"fail_on": "worker:1"}
    TFEstimator(trainFn=train_functions.fail_on_one, tfArgs=args, clusterSize=2, verbose=0).fit(df)
except errors.TrainFnError as error:
    print("error", error.role, error.index, error.message)
TFEstimator(trainFn=lambda args, ctx: ctx.log("said at the end"), verbose=2).fit(df)
for program in (TFCluster, TFParallel):
    try:
        program.run(spark, train, None, 2)
    except errors.ClusterConfigError as error:
        print(str(error).split(",")[0])

def make_model():
    import keras

    layers = [keras.layers.Input((1,)), keras.layers.Normalization(name="scale"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.3), "binary_crossentropy")
    return model

labeled = df.withColumn("label", (F.col("features") > 50).cast("int"))
params = {"adaptLayers": ["scale"], "epochs": 20, "validationSplit": 0.2, "verbose": 0}
fitted = KerasEstimator(model=make_model, **params).fit(labeled)
scored = fitted.transform(labeled)
print("evaluated", {name: value < 0.5 for name, value in fitted.evaluate(labeled, clusterSize=2).items()})
types = dict(scored.dtypes)
print("types", types["probability"], types["prediction"])
print("right", scored.where("prediction = label").count() > 90)

Pipeline(stages=[model]).fit(df).write().save(sys.argv[1] + "/model")
again = PipelineModel.load(sys.argv[1] + "/model").transform(df)
print("scored", again.agg(F.sum(F.col("prediction") - F.col("features"))).first()[0])
print("save begins", file=sys.stderr, flush=True)
model.save(sys.argv[1] + "/alone")
print("save ends", file=sys.stderr, flush=True)
try:
    model.save(sys.argv[1] + "/alone")
except errors.DestinationError as error:
    print("exists", "exists already" in str(error))
spark.stop()
"""


@pytest.mark.corner("Spark Connect: fit, transform, streams, saving")
@needs_connect_server
def test_fit_transform_errors_and_saving_on_spark_connect(connect_server, tmp_path):
    """Nothing faster proves it: a client has no JVM, its server is another process, and all takes Connect's own ways.

    It is one program, as each session costs the start of a server.
    """
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), connect_server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines == [
        "history {'rows_here': [50.0]} rows 100",
        "The model has 7 MiB",
        "streamed 5000.0",
        "scored 5000.0",
        "scored 5000.0",
        "sent 1",
        "error worker 1 the train function raised ZeroDivisionError: the user's own mistake",
        "[worker:0] said at the end",
        "TFCluster needs a SparkContext",
        "TFParallel needs a SparkContext",
        "evaluated {'loss': True}",
        "types vector double",
        "right True",
        "scored 5000.0",
        "exists True",
    ], done.stderr[-3000:]
    told_by_saving = done.stderr.partition("save begins")[2].partition("save ends")[0].strip()
    assert told_by_saving == ""
