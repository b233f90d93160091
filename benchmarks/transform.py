"""How fast ``TFModel.transform`` scores rows, beside ``predict_batch_udf``, an identity UDF and TensorFlow alone.

``transform`` runs with the model in the executor's one scoring process, and in each Python worker. The identity UDF
hands Arrow columns back without a look at them: the limit that Spark sets. ``mlflow.pyfunc.spark_udf`` runs a model of
the same size, of MLflow's TensorFlow flavour. All run the same MLP (n-128-10, batches of 1,024) on
``local-cluster[2,1,4096]`` over the same cached rows, in turn, after one warm-up each in which the executors load the
model. TensorFlowOnSpark's TFModel follows, in an environment and session of its own. TensorFlow alone has the rows in
memory, in this process, and no Spark.

    python benchmarks/transform.py [--rounds 3] [--widths 784 10] [--without-peers]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import peers
import pyarrow as pa
from executors import frame, measure_widths
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, FloatType

from tfos_ml import TFModel

BATCH = 1024
ROWS = {784: 100_000, 10: 1_500_000}
PEER_ROWS = {784: 20_000, 10: 200_000}  # of TensorFlowOnSpark, which takes as long


def save_model(width: int, path: str) -> None:
    """A perceptron with one hidden layer of 128 and ten outputs."""
    import tensorflow as tf

    random = np.random.default_rng(0)
    module = tf.Module()
    module.hidden = tf.Variable(random.normal(size=(width, 128)).astype("f"))
    module.output = tf.Variable(random.normal(size=(128, 10)).astype("f"))
    module.serve = tf.function(lambda features: {"y": tf.nn.relu(features @ module.hidden) @ module.output})
    spec = tf.TensorSpec([None, width], tf.float32, "features")
    tf.saved_model.save(module, path, signatures=module.serve.get_concrete_function(features=spec))


def by_predict_batch_udf(df: DataFrame, path: str) -> DataFrame:
    """What pyspark itself offers."""

    def make():
        import tensorflow as tf

        model = tf.saved_model.load(path)
        return lambda features: model.signatures["serving_default"](features=tf.constant(features))["y"].numpy()

    width = len(df.first().features)
    score = predict_batch_udf(make, return_type=ArrayType(FloatType()), batch_size=BATCH, input_tensor_shapes=[[width]])
    return df.withColumn("prediction", score("features"))


def by_transform(df: DataFrame, path: str, kind: str) -> DataFrame:
    """What this project offers, with one of its scoring processes."""
    df.sparkSession.conf.set("spark.tfos_ml.scoringProcess", kind)
    return TFModel(exportDir=path, predictBatchSize=BATCH).transform(df)


def by_identity(df: DataFrame) -> DataFrame:
    """Nothing but the way of the columns to Python and back."""

    def same(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        yield from batches

    return df.withColumn("prediction", F.arrow_udf(same, ArrayType(FloatType()))("features"))


def by_spark_udf(df: DataFrame, width: int, path: str) -> DataFrame:
    """What MLflow offers, for a Keras model of the same size."""
    import keras
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    features = keras.Input((width,), name="features")
    hidden = keras.layers.Dense(128, "relu", use_bias=False)(features)
    model = keras.Model({"features": features}, keras.layers.Dense(10, use_bias=False)(hidden))
    tensors = [TensorSpec(np.dtype(np.float32), (-1, size), name) for size, name in ((width, "features"), (10, None))]
    signature = ModelSignature(*(Schema([tensor]) for tensor in tensors))
    mlflow.tensorflow.save_model(model, path, signature=signature)
    score = mlflow.pyfunc.spark_udf(df.sparkSession, path, ArrayType(FloatType()), env_manager="local")
    return df.withColumn("prediction", score("features"))


def rates_of_tensorflowonspark(path: str, width: int, rows: int, rounds: int) -> list[float]:
    """Rows a second of each round of its TFModel."""
    script = Path(__file__).parent / "tensorflowonspark_scoring.py"
    command = [peers.python_of("tensorflowonspark"), script, path, str(width), str(rows), str(rounds)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    return [float(line) for line in printed.splitlines()]


def rate(df: DataFrame, rows: int) -> float:
    """Rows a second of scoring them all."""
    start = time.monotonic()
    df.agg(F.sum(F.col("prediction")[0])).collect()
    return rows / (time.monotonic() - start)


def rate_of_tensorflow(path: str, width: int, rows: int) -> float:
    """Rows a second in this process, from memory."""
    import tensorflow as tf

    function = tf.saved_model.load(path).signatures["serving_default"]
    batch = tf.constant(np.random.default_rng(0).random((BATCH, width), dtype=np.float32))
    function(features=batch)
    start = time.monotonic()
    for _ in range(rows // BATCH):
        function(features=batch)["y"].numpy()
    return rows // BATCH * BATCH / (time.monotonic() - start)


def measure(spark: SparkSession, width: int, rounds: int, without_peers: bool) -> None:
    """Print the rates of all, in turn, for rows of `width` floats."""
    rows = ROWS[width]
    df = frame(spark, width, rows)
    with tempfile.TemporaryDirectory() as path:
        save_model(width, path)
        ours = {kind: by_transform(df, path, kind) for kind in ("executor", "worker")}
        theirs = by_predict_batch_udf(df, path)
        contenders: dict[str, Callable[[], float]] = {
            "predict_batch_udf": lambda: rate(theirs, rows),
            "transform (executor)": lambda: rate(ours["executor"], rows),
            "transform (worker)": lambda: rate(ours["worker"], rows),
            "TensorFlow alone": lambda: rate_of_tensorflow(path, width, rows),
        }
        if hasattr(F, "arrow_udf"):  # since Spark 4.1
            contenders["identity UDF"] = lambda: rate(by_identity(df), rows)
        if not without_peers:
            mlflows = by_spark_udf(df, width, f"{path}/mlflow")
            contenders["mlflow spark_udf"] = lambda: rate(mlflows, rows)
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(rounds + 1):
            for name, run in contenders.items():
                found = run()
                if number:
                    rates[name].append(found)
        df.unpersist()
        if not without_peers:
            rates["TensorFlowOnSpark"] = rates_of_tensorflowonspark(path, width, PEER_ROWS[width], min(rounds, 2))
    print(f"\n{width} floats a row, {rows:,} rows, {rounds} rounds: median rows/s, range, ratio to the first")
    base = statistics.median(rates["predict_batch_udf"])
    for name, found in rates.items():
        middle = statistics.median(found)
        print(f"  {name:22} {middle:10,.0f} ({min(found):,.0f} to {max(found):,.0f})  {middle / base:5.2f}")


if __name__ == "__main__":
    measure_widths(__doc__.splitlines()[0], ROWS, measure, without_peers="neither MLflow nor TensorFlowOnSpark")
