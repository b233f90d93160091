"""Checks that the outputs of a model are what its loss expects: probabilities, or logits.

Keras clips and rescales other values, and trains on them without a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfos_ml.data.schema import Array
from tfos_ml.errors import ModelError
from tfos_ml.inference.prediction import LossInfo, bounds_outside_probabilities

if TYPE_CHECKING:
    from tfos_ml.keras.inspection import ModelDescription

_SOFTMAX_LOSSES = {
    "categoricalcrossentropy": "CategoricalCrossentropy",
    "sparsecategoricalcrossentropy": "SparseCategoricalCrossentropy",
    "categoricalfocalcrossentropy": "CategoricalFocalCrossentropy",
    "categoricalgeneralizedcrossentropy": None,  # has no from_logits
    "kldivergence": None,
}
_SIGMOID_LOSSES = {
    "binarycrossentropy": "BinaryCrossentropy",
    "binaryfocalcrossentropy": "BinaryFocalCrossentropy",
}
_ROUNDING, _SUM_TOLERANCE = 1e-3, 0.05


def _squashing(loss: LossInfo) -> str | None:
    """The activation for a loss that compares probabilities; None for other losses."""
    if not loss.from_keras:
        return None
    if loss.key in _SOFTMAX_LOSSES:
        return "softmax"
    return "sigmoid" if loss.key in _SIGMOID_LOSSES else None


def compares_probabilities(loss: LossInfo) -> bool:
    """Whether a loss of Keras compares labels with probabilities, or with logits of probabilities."""
    return _squashing(loss) is not None


def check_activations(description: ModelDescription) -> None:
    """Raise ``ModelError`` if a loss does not match the last activation before it."""
    for name, output in (description.outputs or {}).items():
        loss = description.loss_of(name)
        width = output.shape[-1] if output.shape else None
        problem = loss and activation_problem(loss, name, description.activations.get(name), width)
        if problem:
            raise ModelError(problem)


def check_reductions(description: ModelDescription) -> None:
    """Raise ``ModelError`` for losses whose reduction does not define how workers combine their values."""
    unreduced = [loss.name for loss in description.losses.values() if loss.reduction in (None, "none")]
    if unreduced:
        raise ModelError(
            f"Losses {unreduced} have reduction=None, which leaves open what several workers should "
            "minimize. Compile them with 'sum_over_batch_size', 'sum' or 'mean_with_sample_weight'."
        )


def activation_problem(loss: LossInfo, output: str, activation: str | None, width: int | None) -> str | None:
    """What is wrong with a loss after an activation, and how to correct it; None if nothing is known to be wrong.

    `width` is the size of the last dimension. Width and activation are None if they are unknown.
    """
    wanted = _squashing(loss)
    if wanted is None or activation is None:
        return None
    if activation == "softmax" and width == 1:
        return (
            f"Output '{output}' is a softmax over one unit, which is always 1. Use activation='sigmoid' for two "
            "classes, or as many units as there are classes."
        )
    if activation == "linear" and not loss.from_logits:
        return (
            f"Output '{output}' has no activation, so its values are any numbers, but {loss.name} expects "
            f"probabilities. {_remedy(loss, wanted)}"
        )
    if activation in ("softmax", "sigmoid") and loss.from_logits:
        return (
            f"Output '{output}' is a {activation}, so its values are probabilities, but {loss.name} has "
            "from_logits=True. Compile it without from_logits, or the last layer without activation."
        )
    return None


def value_problem(loss: LossInfo, output: str, values: Array) -> str | None:
    """What is wrong with a batch of outputs for a loss, and how to correct it; None if nothing seems wrong.

    Ignores values that are not finite.
    """
    wanted = _squashing(loss)
    if wanted is None:
        return None
    outside = bounds_outside_probabilities(values)
    if outside is not None and not loss.from_logits:
        low, high = outside
        return (
            f"Output '{output}' has values from {low:.4g} to {high:.4g} for the first batch, but {loss.name} expects "
            f"probabilities. {_remedy(loss, wanted)}"
        )
    has_classes = values.ndim > 1 and values.shape[-1] > 1
    add_up = has_classes and bool(np.all(np.abs(values.sum(axis=-1) - 1) < _ROUNDING))
    if loss.from_logits and wanted == "softmax" and outside is None and add_up:
        return (
            f"Output '{output}' has values that add up to 1 in each row, as probabilities do, but {loss.name} has "
            "from_logits=True. Compile it without from_logits, or the last layer without activation."
        )
    return None


def sum_notice(loss: LossInfo, output: str, values: Array) -> str | None:
    """A notice about probabilities of classes that do not add up to 1; None if they do."""
    if _squashing(loss) != "softmax" or loss.from_logits or values.ndim != 2 or values.shape[-1] < 2:
        return None
    sums = values.sum(axis=-1)
    if not np.isfinite(sums).all() or np.all(np.abs(sums - 1) < _SUM_TOLERANCE):
        return None
    return (
        f"Output '{output}' has values that add up to {sums.min():.3g} to {sums.max():.3g} in a row, but the "
        f"probabilities that {loss.name} expects add up to 1; Keras rescales them. Give its layer activation='softmax'."
    )


def _remedy(loss: LossInfo, activation: str) -> str:
    named = {**_SOFTMAX_LOSSES, **_SIGMOID_LOSSES}[loss.key]
    layer = f"activation='{activation}'"
    if named is None:
        return f"Give its layer {layer}."
    return f"Give its layer {layer}, or compile with loss=keras.losses.{named}(from_logits=True)."
