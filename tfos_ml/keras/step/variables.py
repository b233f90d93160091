"""Everything that the steps of a training change: what a checkpoint holds, and what workers begin with alike."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from inspect import signature
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfos_ml.data.schema import Array
from tfos_ml.keras import privates
from tfos_ml.keras.step.optimizers import intercepted


def value_of(variable: Any) -> Array:
    """The value that a variable has now, without a copy of it; what is assigned later has memory of its own."""
    return np.asarray(tf.convert_to_tensor(variable))


def digest(variables: Iterable[Any]) -> int:
    """A checksum of the values of variables."""
    found = 0
    for variable in variables:
        found = zlib.crc32(np.ascontiguousarray(value_of(variable)).view(np.uint8).data, found)
    return found


def metric_variables(model: keras.Model) -> list[Any]:
    """The state of all metrics of a model, each variable once."""
    return list({id(v): v for metric in model.metrics for v in metric.variables}.values())


class TrainingVariables:
    """The variables of a built, compiled model, and those that its ``train_step`` changes beside them.

    `optimizers` are all that take part in a step, and `written` is what it writes, whether Keras knows of it or not.
    """

    def __init__(self, model: keras.Model, optimizers: list[Any], written: list[tf.Variable]):
        self.model = model
        self.optimizers = optimizers
        self._written = written

    @classmethod
    def of_step(cls, model: keras.Model, traced_on: Any = None) -> TrainingVariables:
        """Those of a model whose step is traced to find them, on the spec of a batch, if one is given."""
        among_attributes = [v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)]
        optimizers, written = [model.optimizer, *among_attributes], list[tf.Variable]()
        if traced_on is not None and not model.run_eagerly:
            with intercepted(lambda update, optimizer, grads, variables: update(grads, variables)) as called:
                try:
                    step = partial(_forward, model) if _updates_as_keras(model) else model.train_step
                    graph = tf.function(step).get_concrete_function(traced_on).graph
                    written = privates.written_variables(graph, graph.variables)
                except Exception:  # which the training will raise, too
                    written = []
            optimizers += called
        return cls(model, _each_once(optimizer for optimizer in optimizers if optimizer is not None), written)

    @property
    def of_optimizers(self) -> list[Any]:
        """The variables of all optimizers."""
        return _each_once(v for optimizer in self.optimizers for v in optimizer.variables)

    @cached_property
    def unknown_to_keras(self) -> list[tf.Variable]:
        """TensorFlow's variables of the program, which Keras neither trains nor saves."""
        known = [*self.model.variables, *self.of_optimizers, *self.seeds, *metric_variables(self.model)]
        known += [variable for mean in privates.means_of_losses(self.model) for variable in mean.variables]
        ids = {id(variable.value) for variable in known}
        return [v for v in _each_once([*_kept_in_layers(self.model), *self._written]) if id(v) not in ids]

    @property
    def of_program(self) -> list[Any]:
        """Those that are not of optimizers: the model's, then those that Keras does not know."""
        return [*self.model.variables, *self.unknown_to_keras]

    @property
    def shared(self) -> list[Any]:
        """All variables that workers have in common, in one order on all of them."""
        seeds = {id(v) for v in self.seeds}
        variables = [*self.model.variables, *self.of_optimizers, *self.unknown_to_keras]
        return [v for v in _each_once(variables) if id(v) not in seeds]

    @property
    def seeds(self) -> list[Any]:
        """The states of Keras's seed generators."""
        return [*privates.seed_states(self.model), privates.global_seed_state()]

    @property
    def scalars(self) -> list[Any]:
        """Variables of the optimizers that are single numbers, such as the learning rate."""
        return [v for v in self.of_optimizers if not len(v.shape)]


def _updates_as_keras(model: keras.Model) -> bool:
    """Whether both ``train_step`` and the optimizer are Keras's own, which write nothing that Keras does not know."""
    is_own_step = type(model).train_step is not keras.Model.train_step or "train_step" in vars(model)
    optimizers = [model.optimizer, getattr(model.optimizer, "inner_optimizer", None)]
    return not is_own_step and all(o is None or privates.is_of_keras(type(o)) for o in optimizers)


def _forward(model: keras.Model, data: Any) -> Any:
    """The part of Keras's ``train_step`` that runs code of the program: it is traced in a sixth of the time."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    outputs = model(x, **_training(model.call))
    model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weights, **_training(model.compute_loss))
    return model.compute_metrics(x, y, outputs, sample_weight=weights)


def _training(function: Any) -> dict[str, bool]:
    """The argument ``training``, for functions that have it, as Keras passes it."""
    return {"training": True} if "training" in signature(function).parameters else {}


def _each_once(parts: Any) -> list[Any]:
    return list({id(part): part for part in parts}.values())


def _kept_in_layers(model: keras.Model) -> Iterator[tf.Variable]:
    layers = [part for part in tf.train.TrackableView(model).descendants() if not isinstance(part, keras.Variable)]
    for layer in layers:
        yield from _variables_in(layer, *getattr(layer, "__dict__", {}).values())


def _variables_in(*values: Any) -> Iterator[tf.Variable]:
    """TensorFlow's variables among values, and in lists and dicts of them, which Keras hides from TensorFlow."""
    for value in values:
        if isinstance(value, tf.Variable):
            yield value
        elif isinstance(value, dict):
            yield from _variables_in(*value.values())
        elif isinstance(value, list | tuple):
            yield from _variables_in(*value)
