"""Small models with a branch for each class, whose weights depend on no other branch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

ROWS, BATCH, WIDTH, TOKENS, WORDS = 41, 8, 16, 30, ("red", "green", "red green", "blue", "")


def rows_of(kind: str) -> Any:
    """The only input of a model: numbers from 0 to 1, numbers of words, or text."""
    random = np.random.RandomState(21)
    if kind == "tokens":
        return random.randint(0, TOKENS, (ROWS, 6))
    if kind == "words":
        return random.choice(WORDS, (ROWS, 1))
    return random.rand(ROWS, WIDTH).astype("f")


def labels_of(kind: str) -> Any:
    """Labels for a kind of output."""
    random = np.random.RandomState(22)
    chosen = random.randint(0, 3, ROWS)
    return {
        "number": lambda: random.uniform(0.5, 2.0, (ROWS, 1)),
        "half": lambda: np.maximum(random.uniform(-1.0, 1.0, (ROWS, 1)), 0),
        "chance": lambda: (chosen[:, None] > 1) * 1.0,
        "pixels": lambda: (random.rand(ROWS, 6) > 0.5) * 1.0,
        "classes": lambda: np.eye(3)[chosen],
        "index": lambda: chosen.astype("i8"),
        "several": lambda: random.rand(ROWS, 3) + 0.1,
        "path": lambda: random.randint(1, 3, (ROWS, 2)),
    }[kind]()


def data(inputs: str, outputs: Mapping[str, str]) -> dict[str, Any]:
    """Rows for a case: five steps, of which the last has one row, dealt unevenly."""
    labels = {name: labels_of(kind) for name, kind in outputs.items()}
    labels = {name: y if y.dtype.kind == "i" else y.astype("f") for name, y in labels.items()}
    return {
        "x": rows_of(inputs),
        "y": labels if len(labels) > 1 else next(iter(labels.values())),
        "w": None,
        "val": np.arange(ROWS) % 5 == 2,
        "batch": BATCH,
        "uneven": True,
        "serves": True,
    }


def input_of(kind: str) -> Any:
    """Keras's input for the rows of a kind."""
    import keras

    shape, dtype = {"tokens": ((6,), "int64"), "words": ((1,), "string")}.get(kind, ((WIDTH,), "float32"))
    return keras.Input(shape, name="x", dtype=dtype)


def shaped(x: Any, shape: tuple[int, ...]) -> Any:
    """Trained numbers from 0 to 1 in a shape."""
    import keras

    return keras.layers.Reshape(shape)(keras.layers.Dense(math.prod(shape), "sigmoid")(x))


def one_number(hidden: Any) -> Any:
    """A trained number from anything."""
    import keras

    return keras.layers.Dense(1)(keras.layers.Flatten()(hidden))


def head(hidden: Any, kind: str) -> Any:
    """An output for a kind of label."""
    import keras

    layers = keras.layers
    if kind == "path":
        return layers.Reshape((5, 3))(layers.Dense(15)(hidden))
    units, activation = {
        "number": (1, "softplus"),
        "half": (1, "relu"),
        "chance": (1, "sigmoid"),
        "pixels": (6, "sigmoid"),
        "several": (3, "softplus"),
    }.get(kind, (3, "softmax"))
    return layers.Dense(units, activation)(hidden)


def model(inputs: str, branches: Mapping[str, Callable[[Any], Any]]) -> Any:
    """A model with an output for each branch, a function of the input; not compiled."""
    import keras

    x = input_of(inputs)
    outputs = []
    for name, branch in branches.items():
        own = input_of(inputs)
        outputs.append(keras.Model(own, branch(own), name=name)(x))
    return keras.Model(x, outputs if len(outputs) > 1 else outputs[0])


def sgd(rate: float = 0.05) -> Any:
    import keras

    return keras.optimizers.SGD(rate, momentum=0.9)


def compiled(
    model: Any, losses: Mapping[str, Any], metrics: Mapping[str, Any] | None = None, rate: float = 0.05
) -> Any:
    """The model, compiled with losses, and metrics, by branch."""
    if len(losses) == 1:
        losses, metrics = next(iter(losses.values())), next(iter(metrics.values())) if metrics else None
    model.compile(sgd(rate), losses, metrics=metrics)
    return model
