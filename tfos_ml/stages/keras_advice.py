"""Warnings and errors of ``KerasEstimator`` about callbacks and models that would not do what they seem to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.common.user_warnings import warn

if TYPE_CHECKING:
    from tfos_ml.keras.model.inspection import ModelDescription

_TAKE_PROBABILITIES = {
    "binarycrossentropy": "sigmoid",
    "binaryfocalcrossentropy": "sigmoid",
    "categoricalcrossentropy": "softmax",
    "categoricalfocalcrossentropy": "softmax",
    "sparsecategoricalcrossentropy": "softmax",
}


def warn_of_monitors(callbacks: Sequence[Any]) -> None:
    """Warn of callbacks that watch validation metrics, for a fit without validation rows; Keras warns only on nodes."""
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if isinstance(monitor, str) and monitor.startswith("val_"):
            warn(
                f"The callback {type(callback).__name__} watches {monitor!r}, but there are no validation rows, so it "
                "will do nothing. Set validationSplit or validationIndicatorCol, or watch 'loss'."
            )


def warn_of_idle_layers(names: Sequence[str]) -> None:
    """Warn of Normalization layers that are not adapted."""
    if names:
        warn(
            f"Normalization layers {list(names)} have mean 0 and variance 1, so they change nothing. Adapt them, or "
            "name them in adaptLayers, if they should."
        )


def warn_of_activations(description: ModelDescription) -> None:
    """Warn of losses that Keras trains with, but that do not match the activation before them."""
    for name, output in (description.outputs or {}).items():
        loss, activation = description.loss_of(name), description.activations.get(name)
        expected = _TAKE_PROBABILITIES.get(loss.key) if loss is not None and loss.from_keras else None
        if loss is None or expected is None:
            continue
        if activation == "softmax" and output.shape and output.shape[-1] == 1:
            warn(
                f"Output '{name}' is a softmax over one unit, which is always 1. Use activation='sigmoid' for two "
                "classes, or as many units as there are classes."
            )
        elif activation == "linear" and not loss.from_logits:
            warn(
                f"Output '{name}' has no activation, so its values are any numbers, but {loss.name} expects "
                f"probabilities. Give its layer activation='{expected}', or compile the loss with from_logits=True."
            )
        elif activation in ("softmax", "sigmoid") and loss.from_logits:
            warn(
                f"Output '{name}' is a {activation}, so its values are probabilities, but {loss.name} has "
                "from_logits=True. Compile it without from_logits, or the last layer without activation."
            )


def refuse_unreduced(description: ModelDescription) -> None:
    """Raise ``ModelError`` for losses whose reduction does not define how workers combine their values."""
    unreduced = [loss.name for loss in description.losses.values() if loss.reduction in (None, "none")]
    if unreduced:
        raise errors.ModelError(
            f"Losses {unreduced} have reduction=None, which leaves open what several workers should "
            "minimize. Compile them with 'sum_over_batch_size', 'sum' or 'mean_with_sample_weight'."
        )
