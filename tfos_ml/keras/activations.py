"""Finds the activation behind an output of a Keras model, if it can be determined for certain."""

from __future__ import annotations

from typing import Any

from tfos_ml.worker import keras_privates

LINEAR, SIGMOID, SOFTMAX = "linear", "sigmoid", "softmax"
_KEEP_VALUES = ("Reshape", "Flatten", "Identity", "Permute")


def output_activations(model: Any) -> dict[str, str]:
    """Names of activations by output of a functional or sequential model.

    ``"linear"`` means that the output may be any number. Outputs with other bounds, or unknown ones, are left out.
    """
    from tfos_ml.worker.export import declared_tensors, named_outputs

    outputs = named_outputs(declared_tensors(model, "outputs") or {}, model)
    activations = {name: _activation_of(tensor) for name, tensor in outputs.items()}
    return {name: activation for name, activation in activations.items() if activation is not None}


def _activation_of(tensor: Any) -> str | None:
    import keras

    origin = keras_privates.origin_of(tensor)
    if origin is None:
        return None
    layer = origin.operation
    if isinstance(layer, keras.Model):
        inner = keras.tree.flatten(getattr(layer, "outputs", None) or [])
        return _activation_of(inner[origin.tensor_index]) if origin.tensor_index < len(inner) else None
    if not type(layer).__module__.startswith("keras."):  # a class of the user's own may do anything
        return None
    if type(layer).__name__ in _KEEP_VALUES or _is_linear_alone(layer):
        return _activation_of(keras_privates.inputs_of_call(layer, origin.call)[0])
    return _activation_of_layer(layer)


def _is_linear_alone(layer: Any) -> bool:
    import keras

    return isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.linear


def _activation_of_layer(layer: Any) -> str | None:
    import keras

    if isinstance(layer, keras.layers.TimeDistributed):
        return _activation_of_layer(layer.layer)
    if isinstance(layer, keras.layers.Softmax):
        return SOFTMAX
    if not isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Activation)):
        return None
    name: str | None = getattr(layer.activation, "__name__", None)
    is_free = layer.trainable and getattr(layer, "kernel_constraint", None) is None
    return None if name == LINEAR and not is_free else name  # weights that are bound may keep the values in bounds
