"""What the programs share: the form of a case's data, and optimizers."""

from __future__ import annotations

import numpy as np


def case(x, y=None, w=None, validates=False, batch=8, **more):
    """The data of a case: arrays, or dicts of arrays by name; one row in five validates, if `validates`."""
    rows = len(next(iter(x.values()))) if isinstance(x, dict) else len(x)
    return {"x": x, "y": y, "w": w, "val": np.arange(rows) % 5 == 2 if validates else None, "batch": batch, **more}


def images(rows=37, size=8, channels=3, seed=31):
    """Images whose brighter half is the left one or the right one, and which of them it is."""
    random = np.random.RandomState(seed)
    x = random.rand(rows, size, size, channels).astype("f")
    label = random.randint(0, 2, rows)
    for image, side in zip(x, label, strict=True):
        image[:, side * size // 2 : (side + 1) * size // 2] += 0.4
    return x, label


def adam(rate=0.01):
    import keras

    return keras.optimizers.Adam(rate)
