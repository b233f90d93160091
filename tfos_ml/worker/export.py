"""Model -> SavedModel with a signature that has stable names.

Keras' own ``export`` names inputs ``keras_tensor_2`` and outputs ``output_0``. Here they have the names of
:mod:`tfos_ml.worker.model_tensors`. If TensorFlow does not allow a name for an argument, the argument gets a similar
one, and a file beside the SavedModel maps the names.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.schema import FeedSchema
from tfos_ml.errors import ModelError
from tfos_ml.excerpt import message_excerpt
from tfos_ml.inference.saved_model import (
    NO_CALL,
    REASON_FILE,
    argument_names,
    not_exported,
    row_splits_name,
    write_signature,
)
from tfos_ml.worker.model_tensors import RowShape, arrange_inputs, input_specs, is_keras_3, named_outputs

_CALLS_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


def export_saved_model(
    model: Any, path: str, schema: FeedSchema, shapes: Sequence[RowShape] | None, signatures: Any, signature_key: str
) -> None:
    """Save `model` at `path`, a new directory, and beside it a description of its signature.

    The columns that it was trained on become its inputs, by name and type; `shapes` has the shape of a row of each, if
    known. `signatures`, those of ``tf.saved_model.save``, replace the default one. The optimizer of a Keras 3 model is
    saved only if a signature needs it. Raises ``ModelError`` if the model has no signature and none can be made.
    """
    if signatures is None:
        Serving(model, input_specs(model, schema, shapes), signature_key).write(path)
        return
    _save(model, path, signatures)
    write_signature(path, signature_key)


def _save(model: Any, path: str, signatures: Any) -> None:
    """Save a model without its optimizer; with it if a signature reads one of its variables."""
    optimizer = getattr(model, "optimizer", None) if is_keras_3(model) else None
    if optimizer is not None:
        del model.optimizer
        try:
            with contextlib.suppress(AssertionError, AttributeError):  # a signature reads it, traced before or now
                tf.saved_model.save(model, path, signatures=signatures)
                return
        finally:
            model.optimizer = optimizer
    tf.saved_model.save(model, path, signatures=signatures)


class Serving:
    """The serving function of a model; can be written as a SavedModel repeatedly while the model trains.

    `inputs` are the model's inputs by name. If a Keras 3 model cannot be exported, the constructor raises Keras's error
    or ``ModelError``; other models are checked when they are written.
    """

    def __init__(self, model: Any, inputs: Mapping[str, TensorInfo], key: str):
        if not callable(model):
            raise ModelError(f"A {type(model).__name__} cannot be called, so it needs signatures=. Give it a __call__.")
        self._model, self._inputs, self._key = model, inputs, key
        tensors = [
            part
            for name, tensor in inputs.items()
            for part in ([name, row_splits_name(name)] if tensor.ragged else [name])
        ]
        self._arguments = argument_names(tensors)
        self._specs = [self._spec(inputs, name) for name in tensors]
        self._serve = _serving_function(model, inputs, self._arguments)
        self._function = tf.function(self._serve, input_signature=self._specs, autograph=False)
        self._root = self._traced() if is_keras_3(model) else model

    def _spec(self, inputs: Mapping[str, TensorInfo], name: str) -> tf.TensorSpec:
        tensor = inputs.get(name, TensorInfo("int64", (None,)))
        return tf.TensorSpec([None] if tensor.ragged else tensor.shape, tensor.dtype, self._arguments[name])

    def _traced(self) -> Any:
        """All that the function uses, including what the model does not track, and no optimizer."""
        function = self._function.get_concrete_function()
        graph = function.graph.as_graph_def()
        nodes = [*graph.node, *(node for called in graph.library.function for node in called.node_def)]
        if _CALLS_PYTHON & {node.op for node in nodes}:
            raise ModelError(
                "the model calls Python (tf.py_function, tf.numpy_function), which a SavedModel cannot do. Use "
                "operations of TensorFlow or Keras"
            )
        root = tf.Module()
        root.used_variables, root.used_tables = list(function.variables), _tables(function)
        return root

    def write(self, path: str) -> None:
        """Save it at a path, a new directory, and beside it a file that maps its names."""
        tf.saved_model.save(self._root, path, signatures={self._key: self._function})
        write_signature(path, self._key, self._arguments, self._inputs)


@dataclass(frozen=True)
class NotServable:
    """Written in place of a SavedModel for a model that cannot be one: the reason."""

    reason: str

    def write(self, path: str) -> None:
        """Make a directory for the reason, to which weights can be added."""
        os.makedirs(path)
        with open(os.path.join(path, REASON_FILE), "w") as file:
            file.write(self.reason)


def prepare(model: Any, inputs: Mapping[str, TensorInfo], key: str) -> Serving | NotServable:
    """What will be written for a model before its training."""
    try:
        return Serving(model, inputs, key)
    except Exception as error:  # of Keras, TensorFlow or the model
        prefix = "" if isinstance(error, ModelError) else f"{type(error).__name__}: "
        why = f"{prefix}{message_excerpt(str(error))}" if can_be_served(model) else NO_CALL
        return NotServable(not_exported(why.rstrip(".")))


def has_call(model: Any) -> bool:
    """Whether a Keras 3 model defines ``call``; one with its own ``train_step`` may not."""
    import keras

    return type(model).call is not keras.Model.call


def has_predict_step(model: Any) -> bool:
    """Whether a model is a Keras 3 model that defines ``predict_step``, by its class or by itself."""
    keras: Any = sys.modules.get("keras")
    return is_keras_3(model) and getattr(model.predict_step, "__func__", None) is not keras.Model.predict_step


def can_be_served(model: Any) -> bool:
    """Whether a Keras 3 model defines what ``predict`` computes."""
    return has_call(model) or has_predict_step(model)


def _tables(function: Any) -> list[Any]:
    """The lookup tables that a function reads, including those that no layer tracks."""
    resource_class = tf.saved_model.experimental.TrackableResource
    variables = {id(variable.handle) for variable in function.variables}
    handles = {id(t) for t in function.captured_inputs if t.dtype == tf.resource} - variables
    known = [o for o in gc.get_objects() if issubclass(type(o), resource_class)] if handles else []
    tables = [table for table in known if id(table.resource_handle) in handles]
    if handles - {id(table.resource_handle) for table in tables}:
        raise ModelError(
            "the model uses a TensorFlow resource that is neither a variable nor a table, and cannot be saved"
        )
    return tables


def is_distributed(model: Any) -> bool:
    """Whether a model, or anything that is saved with it, has variables that belong to a ``tf.distribute`` strategy."""
    return any(getattr(variable, "distribute_strategy", None) is not None for variable in _variables(model))


def _variables(model: Any) -> Iterator[Any]:
    """TensorFlow's variables of a model, and of everything that is saved with it, such as its optimizer."""
    for variable in getattr(model, "variables", ()):
        value = getattr(variable, "value", variable)
        yield variable if callable(value) else value  # no method in Keras 3, whose variables hold TensorFlow's
    if hasattr(model, "_trackable_children"):
        yield from (part for part in tf.train.TrackableView(model).descendants() if isinstance(part, tf.Variable))


def _serving_function(model: Any, inputs: Mapping[str, TensorInfo], arguments: Mapping[str, str]) -> Any:
    """A Python function of one tensor for each input, two (values and row splits) for ragged ones, by `arguments`.

    It computes what ``model.predict`` does: ``predict_step``, if the model has its own, else ``call``.
    """
    own_step = has_predict_step(model)
    is_keras = hasattr(model, "trainable_variables") and hasattr(model, "compute_output_shape")

    def serve(*args: Any, **kwargs: Any) -> dict[str, Any]:
        values = {**dict(zip(arguments.values(), args, strict=False)), **kwargs}
        tensors = {name: values[argument] for name, argument in arguments.items()}
        arranged = arrange_inputs(model, {name: _joined(name, tensor, tensors) for name, tensor in inputs.items()})
        if own_step:
            outputs = model.predict_step(_packed(arranged))
        else:
            outputs = model(arranged, training=False) if is_keras else model(arranged)
        return _name_outputs(outputs, model)

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in arguments.values()]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return serve


def _packed(arranged: Any) -> Any:
    """Inputs as ``predict_step`` gets them from ``predict``."""
    import keras

    return keras.utils.pack_x_y_sample_weight(arranged)


def _joined(name: str, tensor: TensorInfo, tensors: Mapping[str, Any]) -> Any:
    if not tensor.ragged:
        return tensors[name]
    return tf.RaggedTensor.from_row_splits(tensors[name], tensors[row_splits_name(name)])


def _name_outputs(outputs: Any, model: Any) -> dict[str, Any]:
    named = named_outputs(outputs, model)
    return {name: tf.convert_to_tensor(value) for name, value in named.items() if value is not None}
