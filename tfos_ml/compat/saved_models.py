"""Keras 3 models as the SavedModels that Keras 2 made: the same names of inputs and outputs."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from tfos_ml.data.casting import TensorInfo
from tfos_ml.errors import ModelError
from tfos_ml.inference.saved_model import DEFAULT_SIGNATURE
from tfos_ml.worker.export import Serving
from tfos_ml.worker.model_tensors import declared_inputs, declared_tensors

_UNNAMED = ("keras_tensor", "input_layer")


def save_model(model: Any, path: str) -> None:
    """Write a model of either Keras, or a ``tf.Module``, as a SavedModel.

    Raises ``ModelError`` if the inputs of a model of Keras 3 are not known.
    """
    if _is_of("tf_keras", model):
        model.save(path, save_format="tf")
    elif not _is_of("keras", model):
        tf.saved_model.save(model, path)
    else:
        inputs = declared_inputs(model)
        if inputs is None:
            raise ModelError(
                f"The inputs of the {type(model).__name__} are not known. Make it with keras.Input, or as a Sequential "
                "with an Input layer or called on a batch."
            )
        renamed = dict(zip(input_names(model, inputs), inputs.values(), strict=True))
        Serving(model, renamed, DEFAULT_SIGNATURE).write(path)


def _is_of(package: str, model: Any) -> bool:
    """Whether it is a model of a package, ``keras`` or ``tf_keras``."""
    model_class = getattr(sys.modules.get(package), "Model", None)
    return model_class is not None and isinstance(model, model_class)


def input_names(model: Any, inputs: dict[str, TensorInfo]) -> list[str]:
    """The names that Keras 2 gives the inputs of a model.

    Inputs without a name of their own are called after the first layer of a sequential model, else ``input_1``,
    ``input_2``...
    """
    if isinstance(declared_tensors(model, "inputs"), dict):
        return list(inputs)
    is_sequential = type(model).__name__ == "Sequential" and bool(model.layers)
    return [
        name
        if not name.startswith(_UNNAMED)
        else f"{model.layers[0].name}_input"
        if is_sequential
        else f"input_{number}"
        for number, name in enumerate(inputs, 1)
    ]
