"""A training that ends within an epoch goes on at the step of its last checkpoint, on any number of workers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, errors

BATCH, ROWS, EPOCHS = 16, 205, 4  # 12 steps an epoch
pytestmark = pytest.mark.filterwarnings("ignore:Training on several workers", "ignore:Skipping variable loading")


def network(steps_per_execution=1):
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
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.9, gradient_accumulation_steps=2)
    model.compile(optimizer, "mse", metrics=["mae", keras.metrics.R2Score()], steps_per_execution=steps_per_execution)
    return model


def callbacks(directory: str | None = None, ends=()):
    """Callbacks with state of all kinds; one ends the training at some steps, once each."""
    import keras

    class SlowerByStep(keras.callbacks.Callback):
        """Lowers the learning rate after each seventh step."""

        def __init__(self):
            super().__init__()
            self.steps, self.epochs, self.rates = 0, 0, []

        def on_epoch_begin(self, epoch, logs=None):
            self.epochs += 1

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps % 7 == 0:
                self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.9
                self.rates.append(float(self.model.optimizer.learning_rate))

        def on_train_end(self, logs=None):
            assert self.epochs == EPOCHS, self.epochs

    class Ends(keras.callbacks.Callback):
        chief_only = True

        def on_train_batch_end(self, batch, logs=None):
            done = int(self.model.optimizer.iterations)
            for end in ends:
                mark = Path(directory, f"ended-{end}")
                if done >= end and not mark.exists():
                    mark.touch()
                    raise RuntimeError(f"ended after {end} updates")

    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.5)
    stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=3, restore_best_weights=True)
    return [SlowerByStep(), plateau, stopping, *([Ends()] if directory else [])]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("at_once", "resumed_at"), [(1, (6, 3, 9)), pytest.param(5, (5, 5, 5), marks=pytest.mark.chaos)]
)
def test_weights_and_history_are_those_of_plain_keras(spark, tmp_path, at_once, resumed_at):
    random = np.random.RandomState(4)
    x = random.randn(ROWS, 5).astype("f")
    y = (x @ random.randn(5)).astype("f")
    held = np.arange(ROWS) % 9 == 0
    plain = network(at_once)
    history = plain.fit(
        x[~held],
        y[~held],
        validation_data=(x[held], y[held]),
        epochs=EPOCHS,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=callbacks(),
    ).history
    rows = spark.createDataFrame(pd.DataFrame({"features": x.tolist(), "label": y, "held": held})).coalesce(1)
    df = rows.withColumn("features", F.col("features").cast("array<float>"))
    ends = (4, 9, 17)  # updates, each after two steps

    def estimator(workers):
        return KerasEstimator(
            model=network,
            modelArgs={"steps_per_execution": at_once},
            callbacks=callbacks(str(tmp_path), ends),
            modelDir=str(tmp_path / "model"),
            exportDir=str(tmp_path / "export"),
            validationIndicatorCol="held",
            checkpointSteps=3,
            epochs=EPOCHS,
            clusterSize=workers,
            batchSize=BATCH,
            shuffle=False,
            verbose=0,
        )

    for workers, steps in zip((2, 3, 1), resumed_at, strict=True):
        with pytest.raises(errors.TrainFnError, match="ended after"):
            estimator(workers).fit(df)
        newest = max((tmp_path / "model" / "tfos_ml").glob("epoch-*/state.json"))
        assert f"-step-{steps:06d}-" in newest.parent.name
        assert json.loads(newest.read_text())["files"].keys() == {"model.weights.h5", "arrays.npz"}  # nothing pickled
    fitted = estimator(2).fit(df)

    assert {*fitted.summary.history} == {*history}
    for name, values in history.items():
        np.testing.assert_allclose(fitted.summary.history[name], values, rtol=1e-5, atol=1e-5, err_msg=name)
    ended = network()
    ended.load_weights(tmp_path / "export" / "assets.extra" / "model.weights.h5")
    for own, expected in zip(ended.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-5)


def test_checkpoint_steps_without_a_directory_are_an_error_before_the_job(spark):
    df = spark.createDataFrame([([0.0] * 5, 1.0)], "features array<float>, label float")
    with pytest.raises(errors.ParamError, match="checkpointSteps needs modelDir"):
        KerasEstimator(model=network, checkpointSteps=3).fit(df)
