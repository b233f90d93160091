"""A training that goes on from modelDir with another number of workers ends like plain Keras."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator

BATCH, ROWS = 32, 205


def network():
    import keras

    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((5,)),
            layers.Dense(8, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("tanh"),
            layers.Dropout(0.4),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model


@pytest.mark.filterwarnings("ignore:Training on several workers", "ignore:Skipping variable loading for optimizer")
def test_two_then_three_then_one_worker_end_like_six_epochs_of_plain_keras(spark, tmp_path):
    random = np.random.RandomState(4)
    x = random.randn(ROWS, 5).astype("f")
    y = (x @ random.randn(5)).astype("f")
    plain = network()
    history = plain.fit(x, y, epochs=6, batch_size=BATCH, shuffle=False, verbose=0).history
    rows = spark.createDataFrame(pd.DataFrame({"features": x.tolist(), "label": y})).coalesce(1)
    df = rows.withColumn("features", F.col("features").cast("array<float>"))

    for epochs, workers in ((2, 2), (4, 3), (6, 1)):
        fitted = KerasEstimator(
            model=network,
            modelDir=str(tmp_path / "model"),
            exportDir=str(tmp_path / f"export-{epochs}"),
            epochs=epochs,
            clusterSize=workers,
            batchSize=BATCH,
            shuffle=False,
            verbose=0,
        ).fit(df)
        assert len(fitted.summary.history["loss"]) == epochs

    for name, values in history.items():
        np.testing.assert_allclose(fitted.summary.history[name], values, rtol=1e-5, atol=1e-5, err_msg=name)
    ended = network()
    ended.load_weights(tmp_path / "export-6" / "assets.extra" / "model.weights.h5")
    for own, expected in zip(ended.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-5)
