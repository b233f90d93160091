"""Keras 3 models as the SavedModels that Keras 2 made: the same names of inputs and outputs."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from tfos_ml.casting import TensorInfo
from tfos_ml.errors import ModelError
from tfos_ml.training.export import (
    arrange_inputs,
    declared_inputs,
    declared_tensors,
    output_layer_names,
    tensor_spec,
)

SIGNATURE = "serving_default"
_UNNAMED = ("keras_tensor", "input_layer")


def save_model(model: Any, path: str) -> None:
    """Write a model of either Keras, or a ``tf.Module``, as a SavedModel.

    Raises
    ------
    ModelError
        If its inputs are not known.
    """
    if not is_keras_3(model):
        tf.saved_model.save(model, path)
        return
    inputs = declared_inputs(model)
    if inputs is None:
        raise ModelError(
            f"The inputs of the {type(model).__name__} are not known. Call it on a batch or build it first, or make it "
            "with keras.Input."
        )
    tf.saved_model.save(model, path, signatures={SIGNATURE: _serving_function(model, inputs)})


def is_keras_3(model: Any) -> bool:
    """Whether it is a model of Keras 3."""
    keras = sys.modules.get("keras")
    kind = getattr(keras, "Model", None)
    return kind is not None and isinstance(model, kind) and not hasattr(model, "_is_graph_network_keras_2")


def input_names(model: Any, inputs: dict[str, TensorInfo]) -> list[str]:
    """The names that Keras 2 gives the inputs of a model.

    Inputs without a name of their own are called after the first layer of a sequential model, else ``input_1``,
    ``input_2``...
    """
    if isinstance(declared_tensors(model, "inputs"), dict):
        return list(inputs)
    is_sequential = type(model).__name__ == "Sequential" and bool(model.layers)
    names = []
    for number, name in enumerate(inputs, 1):
        if not name.startswith(_UNNAMED):
            names.append(name)
        else:
            names.append(f"{model.layers[0].name}_input" if is_sequential else f"input_{number}")
    return names


def _serving_function(model: Any, inputs: dict[str, TensorInfo]) -> Any:
    named = dict(zip(input_names(model, inputs), inputs, strict=True))
    specs = {name: tensor_spec(inputs[own], name) for name, own in named.items()}

    def serve(**tensors: Any) -> dict[str, Any]:
        outputs = model(arrange_inputs(model, {own: tensors[name] for name, own in named.items()}), training=False)
        if isinstance(outputs, dict):
            return outputs
        values = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        return dict(zip(output_layer_names(model, len(values)), values, strict=True))

    return tf.function(serve, autograph=False).get_concrete_function(**specs)
