"""Made tests/saved/pipeline and tests/saved/model, with the code of commit d8a3709: ``python make.py DIRECTORY``.

They stay as they are: pipelines that users have saved must load with later versions of tfos_ml.
"""

import sys

import keras
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession

from tfos_ml import KerasEstimator, TFEstimator

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.createDataFrame([(float(i), float(i % 3), 2.0 * i) for i in range(12)], "a double, b double, y double")


def train_fn(args, ctx):
    import tensorflow as tf

    class Times(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float64, name="features")])
        def __call__(self, features):
            return {"sum": tf.constant(args["times"], tf.float64) * tf.reduce_sum(features, axis=1)}

    for _ in ctx.dataset(4):
        pass
    ctx.export_saved_model(Times())


layers = [keras.Input((2,), name="features"), keras.layers.Dense(1, kernel_initializer="ones", name="out")]
net = keras.Sequential(layers)
net.compile(optimizer="sgd", loss="mse")
columns = {"featuresCol": "features", "labelCol": "y"}
stages = [
    VectorAssembler(inputCols=["a", "b"], outputCol="features"),
    TFEstimator(
        trainFn=train_fn,
        tfArgs={"times": 2.0},
        inputMapping={"features": "features"},
        labelCol="y",
        outputMapping={"sum": "sum"},
        clusterSize=1,
    ),
    KerasEstimator(model=net, predictionCol="p", epochs=1, batchSize=4, **columns),
]
pipeline = Pipeline(stages=stages)
pipeline.write().overwrite().save(f"{sys.argv[1]}/pipeline")
model = pipeline.fit(df)
model.write().overwrite().save(f"{sys.argv[1]}/model")
model.transform(df).show(3)
