"""Which models need no probe: Keras's own parts that treat each row independently of the others."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras import privates
from tfos_ml.keras.step.metrics import leaf_metrics


def is_row_by_row(model: keras.Model) -> bool:
    """Whether a step uses only parts of Keras that treat each row independently of the others."""
    layers = privates.all_layers(model)
    parts = [*layers, *privates.losses_of_outputs(model), *leaf_metrics(model)]
    if any(isinstance(part, _coupling_classes()) for part in parts):
        return False
    if any(layer.activity_regularizer is not None for layer in layers) and _activity_losses_are_sums():
        return False
    parts += [
        *(getattr(part, name, None) for part in parts for name in ("activation", "activity_regularizer")),
        *map(privates.function_of, parts),
    ]
    operations = {op for layer in layers for op in getattr(layer, "operations", ())}
    return operations <= set(layers) and all(_is_of_keras(part) and not _couples(part) for part in parts)


def refuse_float8(model: keras.Model) -> None:
    """Raise ``ModelError`` if a layer computes in float8: each worker would scale by the largest of its own values."""
    layers = privates.all_layers(model)
    names = [layer.name for layer in layers if getattr(layer, "quantization_mode", None) == "float8"]
    if names:
        raise ModelError(
            f"The layers {names[:3]} compute in float8, with scales by the largest values of the worker's own rows, so "
            "several workers would not train them as one does. Use another dtype policy, or clusterSize=1."
        )


def draws_by_batch(model: keras.Model) -> list[str]:
    """Names of layers of Keras that draw numbers for a batch as a whole, or choose by Python's own random numbers.

    RandomElasticTransform puts the first row of a batch, distorted, in the place of others.
    """
    names = ("AugMix", "RandAugment", "RandomElasticTransform")
    classes = tuple(getattr(keras.layers, name) for name in names if hasattr(keras.layers, name))
    return [layer.name for layer in privates.all_layers(model) if isinstance(layer, classes)]


def _coupling_classes() -> tuple[type, ...]:
    """Keras's layers and losses that may compute over all rows of a batch together, if this version has them.

    Some run functions that Keras does not know.
    """
    layers = ("CutMix", "FlaxLayer", "JaxLayer", "Lambda", "MixUp", "SpectralNormalization", "TFSMLayer")
    losses = ("Circle", "Dice", "Tversky")
    named = [(keras.layers, name) for name in layers] + [(keras.losses, name) for name in losses]
    return tuple(getattr(module, name) for module, name in named if hasattr(module, name))


def _couples(part: Any) -> bool:
    """Whether a part of Keras computes over the rows of a batch: these functions, and whatever has the axis 0."""
    if getattr(part, "__name__", "") in ("circle", "dice", "tversky"):
        return True
    axes = [getattr(part, "axis", None), getattr(part, "axes", None), privates.options_of(part).get("axis")]
    return any(0 in axis if isinstance(axis, (list, tuple)) else axis == 0 for axis in axes)


def _is_of_keras(part: Any) -> bool:
    return part is None or privates.is_of_keras(part if hasattr(part, "__name__") else type(part))


def _activity_losses_are_sums() -> bool:
    """Whether an activity regularizer adds a sum over rows to the loss, as before Keras 3.13, which takes the mean."""
    layer = keras.layers.ActivityRegularization(l2=1.0)
    layer(tf.ones([2, 1]))
    return float(layer.losses[0]) > 1.5
