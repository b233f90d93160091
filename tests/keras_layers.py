"""Models whose layers compute over a batch, or draw random numbers; cases for keras_worker.py."""

from __future__ import annotations

from keras_programs import few_rows


def sgd():
    import keras

    return keras.optimizers.SGD(0.1, momentum=0.9)


def idle():
    """BatchNormalization and dropout of a worker that has no row in the last step."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((4,), name="x"),
            layers.Dense(6, "tanh"),
            layers.Dropout(0.3),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


LAYERS = {"idle_layers": (few_rows, idle)}
