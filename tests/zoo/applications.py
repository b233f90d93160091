"""Where each model of ``keras.applications`` stands: one of each family is trained, tiny."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from zoo.places import Exact, Group, exact

FAMILIES = {  # the smallest member: the others, which have the same layers, in other numbers
    "ConvNeXtTiny": "ConvNeXtSmall ConvNeXtBase ConvNeXtLarge ConvNeXtXLarge",
    "DenseNet121": "DenseNet169 DenseNet201",
    "EfficientNetB0": " ".join(f"EfficientNetB{n}" for n in range(1, 8)),
    "EfficientNetV2B0": "EfficientNetV2B1 EfficientNetV2B2 EfficientNetV2B3 EfficientNetV2S EfficientNetV2M "
    "EfficientNetV2L",
    "InceptionResNetV2": "",
    "InceptionV3": "",
    "MobileNet": "",
    "MobileNetV2": "",
    "MobileNetV3Small": "MobileNetV3Large",
    "NASNetMobile": "NASNetLarge",
    "ResNet50": "ResNet101 ResNet152",
    "ResNet50V2": "ResNet101V2 ResNet152V2",
    "VGG16": "VGG19",
    "Xception": "",
}
# These take pixels from 0 to 255, and rescale them. Of others their layers would see nearly one color only, and
# BatchNormalization would scale the rest up, rounding with it.
OF_PIXELS = ["ConvNeXtTiny", "EfficientNetB0", "EfficientNetV2B0", "MobileNetV3Small"]
SIZES = {"InceptionResNetV2": 75, "InceptionV3": 75, "Xception": 71}
PLACES: dict[str, Exact] = {name: Exact() for family in FAMILIES.items() for name in " ".join(family).split()}


def groups() -> list[Group]:
    """The smallest of each family."""
    return [
        Group(f"applications-{name}", exact(name), functools.partial(rows, name), functools.partial(model, name))
        for name in FAMILIES
    ]


def side(name: str) -> int:
    return SIZES.get(name, 32)


def rows(name: str) -> dict[str, Any]:
    random = np.random.RandomState(23)
    x = (255 if name in OF_PIXELS else 1) * random.rand(9, side(name), side(name), 3).astype("f")
    return {"x": x, "y": random.randint(0, 3, 9), "w": None, "val": None, "batch": 4, "epochs": 1}


def built(name: str) -> Any:
    """The application without weights of a training, with three classes."""
    import keras

    shape = (side(name), side(name), 3)
    return getattr(keras.applications, name)(weights=None, classes=3, input_shape=shape)


def model(name: str) -> Any:
    """Compiled, all in 64 bits: rounding to 32 grows through many normalized layers, in plain Keras as well."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        network = built(name)
    finally:
        keras.config.set_dtype_policy(before)
    x = keras.Input((side(name), side(name), 3), name="x")
    model = keras.Model(x, network(x))
    model.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(dtype="float64"))
    return model
