"""Model -> SavedModel with a signature whose names are ours and stay the same.

Keras' own ``export`` names inputs ``keras_tensor_2`` and outputs ``output_0``; here inputs
carry the tensor names of ``inputMapping`` and outputs dict keys or layer names.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.inference.saved_model import write_signature
from tfos_ml.schema import ColumnSpec, FeedSchema

SINGLE_INPUT = "features"
RowShape = tuple[int | None, ...]


def export_saved_model(
    model: Any,
    path: str,
    schema: FeedSchema,
    shapes: Sequence[RowShape] | None,
    signatures: Any,
    signature_key: str,
) -> None:
    """Save `model` at `path`, and beside it a description of its signature.

    Parameters
    ----------
    model : keras.Model or tf.Module
        What to save.
    path : str
        A new directory.
    schema : FeedSchema
        The columns the model was trained on; their names and types become its inputs.
    shapes : sequence of tuple, optional
        Shape of a row of each column, if known.
    signatures : optional
        As of ``tf.saved_model.save``.
    signature_key : str
        Key under which our own signature is saved.

    Raises
    ------
    ModelError
        If the model has no signature and none can be made.
    """
    if signatures is None:
        signatures = {signature_key: _serving_function(model, _input_specs(model, schema, shapes))}
    tf.saved_model.save(model, path, signatures=signatures)
    write_signature(path, signature_key)


def is_distributed(model: Any) -> bool:
    """Whether a model has variables that belong to a ``tf.distribute`` strategy."""
    values = [getattr(v, "value", v) for v in getattr(model, "variables", ())]
    return any(getattr(v, "distribute_strategy", None) is not None for v in values)


def _input_specs(model: Any, schema: FeedSchema, shapes: Sequence[RowShape] | None) -> dict[str, tf.TensorSpec]:
    """Name, shape and dtype of each input: the model's own if it is built, else the columns'."""
    known: Sequence[RowShape | None] = shapes or [None] * len(schema.columns)
    columns = [(c, s) for c, s in zip(schema.columns, known, strict=True) if c.role == "feature"]
    names = [c.name for c, _ in columns] if schema.named_features else [SINGLE_INPUT]
    declared = _declared_inputs(model)
    if declared is None:
        return {name: _column_spec(c, s) for name, (c, s) in zip(names, columns, strict=True)}
    if isinstance(declared, dict):
        return declared
    if len(declared) != len(names):
        raise ModelError(
            f"The model has {len(declared)} inputs ({[d.name for d in declared]}), but the features are {names}. "
            "Name each input's column with inputMapping."
        )
    own_names = [d.name for d in declared]
    if set(names) == set(own_names):
        names = own_names  # the model takes them in its own order
    return {name: tf.TensorSpec(d.shape, d.dtype, name) for name, d in zip(names, declared, strict=True)}


def _declared_inputs(model: Any) -> list[tf.TensorSpec] | dict[str, tf.TensorSpec] | None:
    """The inputs of a functional or sequential Keras model that is built, None otherwise."""
    inputs = getattr(model, "_inputs_struct", None)
    if inputs is None:
        inputs = getattr(model, "inputs", None)
    if inputs is None or (isinstance(inputs, (list, tuple, dict)) and not inputs):
        return None
    if isinstance(inputs, dict):
        return {name: tf.TensorSpec(t.shape, t.dtype, name) for name, t in inputs.items()}
    tensors = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return [tf.TensorSpec(t.shape, t.dtype, t.name) for t in tensors]


def _column_spec(column: ColumnSpec, shape: RowShape | None) -> tf.TensorSpec:
    dtype = tf.string if column.is_text else tf.as_dtype(column.dtype)
    name = SINGLE_INPUT if not column.name else column.name
    return tf.TensorSpec((None, *(shape if shape is not None else [None] * column.ndim)), dtype, name)


def _serving_function(model: Any, specs: dict[str, tf.TensorSpec]) -> Any:
    if not callable(model):
        raise ModelError(f"A {type(model).__name__} cannot be called, so it needs signatures=. Give it a __call__.")
    is_keras = hasattr(model, "trainable_variables") and hasattr(model, "compute_output_shape")
    takes_dict = isinstance(getattr(model, "_inputs_struct", None), dict) or (
        len(specs) > 1 and not isinstance(getattr(model, "_inputs_struct", None), (list, tuple))
    )

    def serve(*args: Any, **kwargs: Any) -> dict[str, Any]:
        inputs = {**dict(zip(specs, args, strict=False)), **kwargs}
        given: Any = inputs
        if not takes_dict:
            given = next(iter(inputs.values())) if len(inputs) == 1 else [inputs[name] for name in specs]
        outputs = model(given, training=False) if is_keras else model(given)
        return _name_outputs(outputs, model)

    named = {name: tf.TensorSpec(s.shape, s.dtype, name) for name, s in specs.items()}
    if not all(name.isidentifier() for name in named):
        return tf.function(serve, autograph=False).get_concrete_function(**named)
    # Traced anew when saved: variables of a strategy cannot be saved in a function traced before.
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in named]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return tf.function(serve, input_signature=list(named.values()), autograph=False)


def _name_outputs(outputs: Any, model: Any) -> dict[str, Any]:
    """Outputs by dict key, else layer name, else ``output_0``, ``output_1``..."""
    if isinstance(outputs, dict):
        return {str(name): tf.convert_to_tensor(value) for name, value in outputs.items()}
    values = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    names = _layer_names(model)
    if len(set(names)) != len(values):
        names = [f"output_{i}" for i in range(len(values))]
    return {name: tf.convert_to_tensor(value) for name, value in zip(names, values, strict=True)}


def _layer_names(model: Any) -> list[str]:
    """Names of the layers that give the outputs of a Keras model; empty for other models."""
    if getattr(model, "output_names", None):
        return list(model.output_names)
    try:
        return [output._keras_history.operation.name for output in model.outputs]
    except (AttributeError, TypeError, ValueError):  # not Keras, or a model that is not built
        return []
