"""The models that training is measured with, for Keras 3 and Keras 2 alike, and their rows."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

WIDTH, CLASSES = 784, 10


def random_rows(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images as flat rows of float32, and their classes."""
    random = np.random.default_rng(seed)
    return random.random((rows, WIDTH), dtype=np.float32), random.integers(0, CLASSES, rows, dtype=np.int32)


def layers_of(keras: ModuleType, name: str) -> list[Any]:
    """Layers of a model.

    "cnn" is a small convolutional network for 28x28 images, "long" one whose steps take about five times as long, "mlp"
    a perceptron with one hidden layer of 128.
    """
    layers = keras.layers
    if name == "mlp":
        hidden = [layers.Dense(128, activation="relu")]
    else:
        filters = {"cnn": (32, 64), "long": (64, 192)}[name]
        hidden = [layers.Reshape((28, 28, 1))]
        for number in filters:
            hidden += [layers.Conv2D(number, 3, activation="relu"), layers.MaxPooling2D()]
        hidden.append(layers.Flatten())
    return [layers.Input((WIDTH,)), *hidden, layers.Dense(CLASSES, activation="softmax")]
