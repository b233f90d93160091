"""Models whose layers compute over a batch, or draw random numbers; cases for keras_worker.py."""

from __future__ import annotations

import numpy as np
from keras_programs import few_rows, tokens


def images(rows=37, batch=8):
    random = np.random.RandomState(12)
    x = random.rand(rows, 8, 8, 3).astype("f")
    return {"x": x, "y": x.mean((1, 2, 3)).astype("f"), "w": None, "val": np.arange(rows) % 5 == 2, "batch": batch}


def sgd():
    import keras

    return keras.optimizers.SGD(0.1, momentum=0.9)


def dense(*layers, width=4):
    """Layers, by functions that make them, between two of 6 and 1 units."""
    import keras

    made = [make() for make in layers]
    model = keras.Sequential(
        [keras.layers.Input((width,), name="x"), keras.layers.Dense(6, "tanh"), *made, keras.layers.Dense(1)]
    )
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


def layer(name, *args, **options):
    import keras

    return lambda: getattr(keras.layers, name)(*args, **options)


def convolutional():
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8, 8, 3), name="x"),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.SpatialDropout2D(0.3),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(momentum=0.9, scale=False),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.5),
            layers.Dense(1),
        ]
    )
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


def recommender():
    """Several tables, one of them read twice, and Adam."""
    import keras

    layers = keras.layers
    x = layers.Input((6,), name="x", dtype="int64")
    tables = [layers.Embedding(50, 3) for _ in range(4)]
    read = [layers.Flatten()(table(x[:, n : n + 1])) for n, table in enumerate(tables)]
    read.append(layers.Flatten()(tables[0](x[:, 4:5])))
    model = keras.Model(x, layers.Dense(1, "sigmoid")(layers.Concatenate()(read)))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    return model


LAYERS = {
    "convolutional": (images, convolutional),
    "idle_layers": (few_rows, lambda: dense(layer("Dropout", 0.3), layer("BatchNormalization"))),
    "recommender": (tokens, recommender),
}
