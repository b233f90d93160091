"""A client of Spark Connect that has neither Java nor TensorFlow nor MLflow: an environment that noxfile.py makes."""

from __future__ import annotations

import os
import subprocess

import pytest
from conftest import CLUSTER
from connect_server import ConnectServer

CLIENT = os.environ.get("TFOS_ML_CLIENT_PYTHON", "")
PROGRAM = """
import importlib.util, shutil, sys
from pyspark.ml import Pipeline, PipelineModel
from pyspark.sql import SparkSession, functions as F
from tfos_ml import KerasEstimator, TFEstimator, errors

assert not shutil.which("java"), "the client should have no Java"
assert not [name for name in ("tensorflow", "mlflow") if importlib.util.find_spec(name)], "and none of these"
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
df = spark.range(0, 100, 1, 3).select(F.col("id").cast("float").alias("features"))

def train(args, ctx):
    import tensorflow as tf

    rows = sum(int(batch.shape[0]) for batch in ctx.dataset())
    module = tf.Module()
    module.serve = tf.function(lambda features: {"y": features + rows})
    specs = tf.TensorSpec([None], tf.float32, "features")
    ctx.export_saved_model(module, signatures={"serving_default": module.serve.get_concrete_function(features=specs)})

model = Pipeline(stages=[TFEstimator(trainFn=train, verbose=0)]).fit(df)
difference = F.sum(F.col("prediction") - F.col("features"))
print("scored", model.transform(df).agg(difference).first()[0])
model.write().save(sys.argv[2] + "/model")
print("loaded", PipelineModel.load(sys.argv[2] + "/model").transform(df).agg(difference).first()[0])
try:
    KerasEstimator(model=lambda: None, verbose=0).fit(df.withColumn("label", F.lit(1.0)))
except errors.MissingPackageError as error:
    print(error)
spark.stop()
"""


@pytest.mark.corner("Spark Connect client without Java, TensorFlow and MLflow")
@pytest.mark.skipif(not CLIENT, reason="needs an environment that noxfile.py makes")
def test_a_client_without_java_and_tensorflow(tmp_path):
    program = tmp_path / "client.py"  # pyspark-client 4.2 takes one given with -c for its doctests, which need Java
    program.write_text(PROGRAM)
    server = ConnectServer(CLUSTER, {"spark.ui.enabled": "false"})
    environment = {"HOME": str(tmp_path), "PATH": os.path.dirname(CLIENT), "TMPDIR": str(tmp_path)}
    try:
        command = [CLIENT, str(program), server.url, str(tmp_path)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=350, cwd=tmp_path, env=environment, check=False
        )
    finally:
        server.close()
    assert done.stdout.splitlines() == [
        "scored 10000.0",
        "loaded 10000.0",
        "KerasEstimator, which looks at the model before any job starts, needs tensorflow, which is not installed "
        "here. Run: pip install 'tfos_ml[tensorflow]' (tensorflow-cpu does as well).",
    ], done.stderr[-3000:] + server.log()[-2000:]
