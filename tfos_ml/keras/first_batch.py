"""Checks a model's outputs for the first batch before the training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tfos_ml.errors import ModelError
from tfos_ml.keras.output_checks import compares_probabilities, sum_notice, value_problem
from tfos_ml.worker.export import output_layer_names

if TYPE_CHECKING:
    from tfos_ml.keras.inspection import ModelDescription
    from tfos_ml.keras.training_data import TrainingData


def check_first_batch(model: Any, data: TrainingData, description: ModelDescription) -> list[str]:
    """Notices about the outputs of a model for the first rows of this worker.

    Raises ``ModelError`` if they are not what the loss expects.
    """
    if not any(compares_probabilities(loss) for loss in description.losses.values()):
        return []
    notices = []
    for name, values in _outputs(model, data).items():
        loss = description.loss_of(name)
        if loss is None:
            continue
        problem = value_problem(loss, name, values)
        if problem:
            raise ModelError(problem)
        notices.append(sum_notice(loss, name, values))
    return [notice for notice in notices if notice]


def _outputs(model: Any, data: TrainingData) -> dict[str, Any]:
    """The outputs by name; none if there are no rows, or if the model cannot simply be called."""
    try:
        with _state_kept(model):
            outputs = model(data.first_inputs(), training=False)
        named = outputs if isinstance(outputs, dict) else _named(model, outputs)
        arrays = {str(name): np.asarray(value, np.float64) for name, value in named.items()}
    except Exception:  # one with a train_step of its own may never be called, and be right
        return {}
    return {name: values for name, values in arrays.items() if values.size}


@contextlib.contextmanager
def _state_kept(model: Any) -> Iterator[None]:
    """Restore a built model: layers such as stateful RNNs change with each call."""
    before = [(variable, variable.numpy()) for variable in model.non_trainable_variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _named(model: Any, outputs: Any) -> dict[str, Any]:
    listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    return dict(zip(output_layer_names(model, len(listed)), listed, strict=True))
