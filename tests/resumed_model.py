"""A model with state of many kinds, its rows, and how plain Keras trains it: for trainings that end and go on."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from trained_rows import note_rows

BATCH, ROWS, EPOCHS = 16, 205, 4  # 12 steps an epoch


def network(steps_per_execution=1, notes=None):
    """BatchNormalization, dropout, momentum, averaged weights and accumulated gradients.

    With `notes`, a directory, it notes the rows of each step there.
    """
    import keras

    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((5,)),
            *([note_rows(notes)] if notes else []),
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


def stateful_callbacks(epochs: int = EPOCHS) -> list[Any]:
    """Callbacks with state, one of which acts on batches."""
    import keras

    class SlowerByStep(keras.callbacks.Callback):
        """Lowers the learning rate after each seventh step."""

        def __init__(self):
            super().__init__()
            self.steps, self.epochs, self._rates = 0, 0, []

        def on_epoch_begin(self, epoch, logs=None):
            self.epochs += 1

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps % 7 == 0:
                self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.9
                self._rates.append(float(self.model.optimizer.learning_rate))

        def on_train_end(self, logs=None):
            assert self.epochs == epochs, self.epochs

    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.5)
    stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=3, restore_best_weights=True)
    return [SlowerByStep(), plateau, stopping]


class Expected:
    """The rows, and the weights and history of plain Keras, which trains when it is asked for them."""

    def __init__(self, epochs: int = EPOCHS, steps_per_execution: int = 1):
        random = np.random.RandomState(4)
        self.x = random.randn(ROWS, 5).astype("f")
        self.y = (self.x @ random.randn(5)).astype("f")
        self.held = np.arange(ROWS) % 9 == 0
        self._epochs, self._steps_per_execution = epochs, steps_per_execution

    @cached_property
    def _ended(self) -> tuple[dict[str, list[float]], list[Any]]:
        """History and weights."""
        model = network(self._steps_per_execution)
        history = model.fit(
            self.trained,
            self.y[~self.held],
            validation_data=(self.x[self.held], self.y[self.held]),
            epochs=self._epochs,
            batch_size=BATCH,
            shuffle=False,
            verbose=0,
            callbacks=stateful_callbacks(self._epochs),
        ).history
        return history, model.get_weights()

    @property
    def history(self) -> dict[str, list[float]]:
        """That of plain Keras."""
        return self._ended[0]

    @property
    def trained(self) -> Any:
        """Features of the rows that are not for validation."""
        return self.x[~self.held]

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows as a DataFrame of one partition."""
        rows = pd.DataFrame({"features": self.x.tolist(), "label": self.y, "held": self.held})
        df = spark.createDataFrame(rows).coalesce(1)
        return df.withColumn("features", F.col("features").cast("array<float>"))

    def check(self, summary: Any, weights_file: Any) -> None:
        """Compare a fit's history, and the weights in a file, with those of plain Keras."""
        assert {*summary.history} == {*self.history}
        for name, values in self.history.items():
            np.testing.assert_allclose(summary.history[name], values, rtol=1e-5, atol=1e-5, err_msg=name)
        self.check_weights(weights_file)

    def check_weights(self, weights_file: Any) -> None:
        """Compare the weights in a file with those of plain Keras."""
        ended = network()
        ended.load_weights(weights_file)
        for own, expected in zip(ended.get_weights(), self._ended[1], strict=True):
            np.testing.assert_allclose(own, expected, atol=1e-5)
