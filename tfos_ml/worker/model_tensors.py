"""The inputs and outputs of a model: their names, their structure, and values in it.

Inputs have the tensor names of ``inputMapping``, outputs have dict keys or layer names. Parts of nested inputs and
outputs are named by their path: ``{"a": [x, y]}`` has ``a/0`` and ``a/1``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfos_ml.data.casting import TensorInfo, fit_to_tensor
from tfos_ml.data.schema import Array, ColumnSpec, FeedSchema
from tfos_ml.errors import ModelError

SINGLE_INPUT = "features"
RowShape = tuple[int | None, ...]


def is_keras_3(model: Any) -> bool:
    """Whether a model is one of Keras 3."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)


def input_specs(model: Any, schema: FeedSchema, shapes: Sequence[RowShape] | None) -> dict[str, TensorInfo]:
    """Each input by name: the model's own if it is built, else the columns'."""
    known: Sequence[RowShape | None] = shapes or [None] * len(schema.columns)
    columns = [(c, s) for c, s in zip(schema.columns, known, strict=True) if c.role == "feature"]
    names = [c.name for c, _ in columns] if schema.named_features else [SINGLE_INPUT]
    declared = declared_inputs(model)
    if declared is None:
        return {name: _column_info(c, s) for name, (c, s) in zip(names, columns, strict=True)}
    if is_nested(declared_tensors(model, "inputs")):
        return declared
    if len(declared) != len(names):
        raise ModelError(
            f"The model has {len(declared)} inputs ({list(declared)}), but the features are {names}. "
            "Name each input's column with inputMapping."
        )
    if set(names) == set(declared):
        return declared  # the model takes them in its own order
    return dict(zip(names, declared.values(), strict=True))


def declared_inputs(model: Any) -> dict[str, TensorInfo] | None:
    """The inputs of a functional or sequential Keras model that is built, by name; None otherwise."""
    inputs: Any = declared_tensors(model, "inputs")
    if inputs is None:
        return None
    named: dict[str, Any] = by_path(inputs) if is_nested(inputs) else {t.name: t for t in inputs}
    return {str(name): _info(t) for name, t in named.items()}


def declared_outputs(model: Any) -> dict[str, TensorInfo] | None:
    """The outputs of a functional or sequential Keras model that is built, by name; None otherwise."""
    outputs = declared_tensors(model, "outputs")
    if outputs is None:
        return None
    return {name: _info(t) for name, t in named_outputs(outputs, model).items()}


def _info(tensor: Any) -> TensorInfo:
    return TensorInfo(tensor.dtype, tuple(tensor.shape), bool(getattr(tensor, "ragged", False)))


def _column_info(column: ColumnSpec, shape: RowShape | None) -> TensorInfo:
    row = shape if shape is not None else (None,) * column.ndim
    return TensorInfo("string" if column.is_text else column.dtype, (None, *row))


def declared_tensors(model: Any, side: str) -> dict[str, Any] | list[Any] | None:
    """A model's symbolic inputs or outputs in their original structure; a single one as a list."""
    tensors = functional_tensors(model, side)
    if tensors is None:
        tensors = getattr(model, side, None)
    if tensors is None or isinstance(tensors, dict):
        return tensors or None
    return (list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]) or None


def functional_tensors(model: Any, side: str) -> Any:
    """The inputs or outputs of a functional Keras 3 model in their original structure; None of any other."""
    return getattr(model, side.removesuffix("s")) if is_keras_3(model) and hasattr(model, "output_names") else None


def tensor_spec(tensor: TensorInfo) -> tf.TensorSpec | tf.RaggedTensorSpec:
    """A tensor as TensorFlow describes it."""
    if tensor.ragged:
        return tf.RaggedTensorSpec(tensor.shape, tensor.dtype, ragged_rank=1)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def fit_inputs(inputs: Mapping[str, TensorInfo], schema: FeedSchema, values: Mapping[str, Array]) -> dict[str, Array]:
    """Values of the feature columns, by tensor name, as the model's inputs; ``ShapeError`` if one does not fit."""
    columns = {c.name: c.column for c in schema.columns if c.role == "feature"}
    fitted = {}
    for name, tensor in inputs.items():
        source = name if name in columns else next(iter(columns))
        fitted[name] = fit_to_tensor(values[source], columns[source], name, tensor)
    return fitted


def arrange_inputs(model: Any, inputs: dict[str, Any]) -> Any:
    """Inputs by name, in the model's order, as the argument of the model: a tensor, a list or a dict."""
    struct = functional_tensors(model, "inputs")
    nested = struct if struct is not None else _shapes_built_with(model)
    if is_nested(nested) and by_path(nested).keys() == inputs.keys():
        return from_paths(nested, inputs)
    if isinstance(struct, dict) or (len(inputs) > 1 and not isinstance(struct, (list, tuple))):
        return inputs
    return next(iter(inputs.values())) if len(inputs) == 1 else list(inputs.values())


def _shapes_built_with(model: Any) -> Any:
    """The structure of the inputs that a Keras 3 model was built with, whose leaves are no lists; None if unknown."""
    if not is_keras_3(model):
        return None
    import keras

    shapes = (model.get_build_config() or {}).get("input_shape")
    return None if shapes is None else keras.tree.map_shape_structure(str, shapes)


def named_outputs(outputs: Any, model: Any) -> dict[str, Any]:
    """Outputs by dict key, or path if they are nested, else layer name, else ``output_0``, ``output_1``..."""
    if is_nested(outputs):
        return by_path(outputs)
    values = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    return dict(zip(output_layer_names(model, len(values)), values, strict=True))


def output_layer_names(model: Any, count: int) -> list[str]:
    """Names of the layers that give a model's outputs, else ``output_0``, ``output_1``..."""
    names: list[str] = list(getattr(model, "output_names", None) or ())
    if not names:
        keras: Any = sys.modules.get("keras")
        names = [layer.name for layer in model.layers[-1:]] if keras and isinstance(model, keras.Sequential) else []
    return names if len(set(names)) == count else [f"output_{i}" for i in range(count)]


def is_nested(structure: Any) -> bool:
    """Whether it is a dict, or a list that contains a list or dict."""
    if isinstance(structure, (list, tuple)):
        return any(isinstance(part, (list, tuple, Mapping)) for part in structure)
    return isinstance(structure, Mapping)


def by_path(structure: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested lists and dicts, by path."""
    if not isinstance(structure, (list, tuple, Mapping)):
        return {path: structure}
    items = structure.items() if isinstance(structure, Mapping) else enumerate(structure)
    parts = ((f"{path}/{key}" if path else str(key), part) for key, part in items)
    return {name: leaf for place, part in parts for name, leaf in by_path(part, place).items()}


def from_paths(structure: Any, leaves: Mapping[str, Any], path: str = "") -> Any:
    """A structure like another, with leaves by path; tuples replace lists, which tf.data takes for tensors."""
    start = f"{path}/" if path else ""
    if isinstance(structure, Mapping):
        return {key: from_paths(part, leaves, f"{start}{key}") for key, part in structure.items()}
    if isinstance(structure, (list, tuple)):
        return tuple(from_paths(part, leaves, f"{start}{i}") for i, part in enumerate(structure))
    return leaves[path]
