"""Model -> SavedModel with a signature whose names are ours and stay the same.

Keras' own ``export`` names inputs ``keras_tensor_2`` and outputs ``output_0``; here inputs
carry the tensor names of ``inputMapping`` and outputs dict keys or layer names.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfos_ml.data.casting import TensorInfo, fit_to_tensor
from tfos_ml.data.schema import Array, ColumnSpec, FeedSchema
from tfos_ml.errors import ModelError
from tfos_ml.inference.saved_model import row_splits_name, write_signature
from tfos_ml.worker import keras_privates

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
    """Save `model` at `path`, a new directory, and beside it a description of its signature.

    Names and types of the columns it was trained on become its inputs; `shapes` has the shape of a row of each, if
    known. With `signatures`, as of ``tf.saved_model.save``, ours is not saved. The optimizer of a model of Keras 3 is
    not saved, unless a signature needs it. Raises ``ModelError`` if the model has
    no signature and none can be made.
    """
    ragged: list[str] = []
    if signatures is None:
        inputs = input_specs(model, schema, shapes)
        ragged = [name for name, tensor in inputs.items() if tensor.ragged]
        signatures = {signature_key: serving_function(model, inputs)}
    _save(model, path, signatures)
    write_signature(path, signature_key, ragged)


def _save(model: Any, path: str, signatures: Any) -> None:
    """Save a model without its optimizer; with it if a signature reads one of its variables."""
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.Model) and getattr(model, "optimizer", None) is not None:
        with contextlib.suppress(AssertionError), keras_privates.without_optimizer(model):
            tf.saved_model.save(model, path, signatures=signatures)
            return
    tf.saved_model.save(model, path, signatures=signatures)


def is_distributed(model: Any) -> bool:
    """Whether a model, or anything that is saved with it, has variables that belong to a ``tf.distribute`` strategy."""
    return any(getattr(variable, "distribute_strategy", None) is not None for variable in _variables(model))


def _variables(model: Any) -> Iterator[Any]:
    """TensorFlow's variables of a model, and of all that TensorFlow would save with it, its optimizer for one."""
    for variable in getattr(model, "variables", ()):
        value = getattr(variable, "value", variable)
        yield variable if callable(value) else value  # no method in Keras 3, whose variables hold TensorFlow's
    if hasattr(model, "_trackable_children"):
        yield from (part for part in tf.train.TrackableView(model).descendants() if isinstance(part, tf.Variable))


def input_specs(model: Any, schema: FeedSchema, shapes: Sequence[RowShape] | None) -> dict[str, TensorInfo]:
    """Each input by name: the model's own if it is built, else the columns'."""
    known: Sequence[RowShape | None] = shapes or [None] * len(schema.columns)
    columns = [(c, s) for c, s in zip(schema.columns, known, strict=True) if c.role == "feature"]
    names = [c.name for c, _ in columns] if schema.named_features else [SINGLE_INPUT]
    declared = declared_inputs(model)
    if declared is None:
        return {name: _column_info(c, s) for name, (c, s) in zip(names, columns, strict=True)}
    if isinstance(declared_tensors(model, "inputs"), dict):
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
    inputs = declared_tensors(model, "inputs")
    if inputs is None:
        return None
    named = inputs if isinstance(inputs, dict) else {t.name: t for t in inputs}
    return {str(name): _info(t) for name, t in named.items()}


def _info(tensor: Any) -> TensorInfo:
    return TensorInfo(tensor.dtype, tuple(tensor.shape), bool(getattr(tensor, "ragged", False)))


def declared_outputs(model: Any) -> dict[str, TensorInfo] | None:
    """The outputs of a functional or sequential Keras model that is built, by name; None otherwise."""
    outputs = declared_tensors(model, "outputs")
    if outputs is None:
        return None
    if not isinstance(outputs, dict):
        outputs = dict(zip(output_layer_names(model, len(outputs)), outputs, strict=True))
    return {str(name): _info(t) for name, t in outputs.items()}


def declared_tensors(model: Any, kind: str) -> dict[str, Any] | list[Any] | None:
    """A model's symbolic inputs or outputs as its maker arranged them; one alone as a list."""
    tensors = getattr(model, f"_{kind}_struct", None)
    if tensors is None:
        tensors = getattr(model, kind, None)
    if tensors is None or isinstance(tensors, dict):
        return tensors or None
    return (list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]) or None


def fit_inputs(inputs: Mapping[str, TensorInfo], schema: FeedSchema, values: Mapping[str, Array]) -> dict[str, Array]:
    """Values of the feature columns, by tensor name, as the model's inputs; ``ShapeError`` if one does not fit."""
    columns = {c.name: c.column for c in schema.columns if c.role == "feature"}
    fitted = {}
    for name, tensor in inputs.items():
        source = name if name in columns else next(iter(columns))
        fitted[name] = fit_to_tensor(values[source], columns[source], name, tensor)
    return fitted


def _column_info(column: ColumnSpec, shape: RowShape | None) -> TensorInfo:
    row = shape if shape is not None else (None,) * column.ndim
    return TensorInfo("string" if column.is_text else column.dtype, (None, *row))


def tensor_spec(tensor: TensorInfo, name: str | None = None) -> tf.TensorSpec | tf.RaggedTensorSpec:
    """What TensorFlow calls it."""
    if tensor.ragged:
        return tf.RaggedTensorSpec(tensor.shape, tensor.dtype, ragged_rank=1)
    return tf.TensorSpec(tensor.shape, tensor.dtype, name)


def arrange_inputs(model: Any, inputs: dict[str, Any]) -> Any:
    """Inputs by name, in the model's order, as what the model is called with: one, a list or a dict."""
    struct = getattr(model, "_inputs_struct", None)
    if isinstance(struct, dict) or (len(inputs) > 1 and not isinstance(struct, (list, tuple))):
        return inputs
    return next(iter(inputs.values())) if len(inputs) == 1 else list(inputs.values())


def serving_function(model: Any, inputs: dict[str, TensorInfo]) -> Any:
    """A function of one tensor for each input, two (values and row splits) for ragged ones."""
    if not callable(model):
        raise ModelError(f"A {type(model).__name__} cannot be called, so it needs signatures=. Give it a __call__.")
    is_keras = hasattr(model, "trainable_variables") and hasattr(model, "compute_output_shape")
    named: dict[str, tf.TensorSpec] = {}
    for name, tensor in inputs.items():
        named[name] = tf.TensorSpec([None] if tensor.ragged else tensor.shape, tensor.dtype, name)
        if tensor.ragged:
            named[row_splits_name(name)] = tf.TensorSpec([None], tf.int64, row_splits_name(name))

    def serve(*args: Any, **kwargs: Any) -> dict[str, Any]:
        tensors = {**dict(zip(named, args, strict=False)), **kwargs}
        given = arrange_inputs(model, {name: _joined(name, tensor, tensors) for name, tensor in inputs.items()})
        outputs = model(given, training=False) if is_keras else model(given)
        return _name_outputs(outputs, model)

    if not all(name.isidentifier() for name in named):
        return tf.function(serve, autograph=False).get_concrete_function(**named)
    # Traced anew when saved: variables of a strategy cannot be saved in a function traced before.
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in named]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return tf.function(serve, input_signature=list(named.values()), autograph=False)


def _joined(name: str, tensor: TensorInfo, tensors: Mapping[str, Any]) -> Any:
    if not tensor.ragged:
        return tensors[name]
    return tf.RaggedTensor.from_row_splits(tensors[name], tensors[row_splits_name(name)])


def _name_outputs(outputs: Any, model: Any) -> dict[str, Any]:
    """Outputs by dict key, else layer name, else ``output_0``, ``output_1``..."""
    if isinstance(outputs, dict):
        return {str(name): tf.convert_to_tensor(value) for name, value in outputs.items()}
    values = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    names = output_layer_names(model, len(values))
    return {name: tf.convert_to_tensor(value) for name, value in zip(names, values, strict=True)}


def output_layer_names(model: Any, count: int) -> list[str]:
    """Names of the layers that give a model's outputs, else ``output_0``, ``output_1``..."""
    names: list[str] = list(getattr(model, "output_names", None) or ())
    if not names:
        try:
            origins = map(keras_privates.origin_of, model.outputs)
            names = [origin.operation.name for origin in origins if origin]
        except (AttributeError, TypeError, ValueError):  # not Keras, or a model that is not built
            names = []
    return names if len(set(names)) == count else [f"output_{i}" for i in range(count)]
