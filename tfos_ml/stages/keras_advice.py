"""Errors and warnings of ``KerasEstimator`` about arguments that would have no effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfos_ml import errors
from tfos_ml.common.user_warnings import warn

_NO_SERVERS: tuple[type[errors.TfosMlError], str] = (
    errors.ClusterConfigError,
    "KerasEstimator cannot train with parameter servers (numPS): Keras 3 does not support ParameterServerStrategy. "
    "Leave numPS out to train synchronously; or train a tf_keras (Keras 2) model, or plain TensorFlow variables, "
    "with TFEstimator and nodeEnv={'TF_USE_LEGACY_KERAS': '1'}.",
)
_REFUSED: dict[str, tuple[type[errors.TfosMlError], str]] = {
    **dict.fromkeys(["numPS", "driverPSNodes"], _NO_SERVERS),
    "evalNode": (
        errors.ClusterConfigError,
        "KerasEstimator needs no evaluator (evalNode): all workers evaluate, each row once. Leave it out, and mark the "
        "rows with validationIndicatorCol or set validationSplit.",
    ),
    "inputMode": (
        errors.ParamError,
        "KerasEstimator trains on rows that Spark feeds; inputMode is for TFEstimator. Leave it out.",
    ),
}


def refuse_param(name: str) -> None:
    """Raise an error with advice if a Param of ``TFEstimator`` is none of ``KerasEstimator``."""
    if name in _REFUSED:
        error_class, reason = _REFUSED[name]
        raise error_class(reason)


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
