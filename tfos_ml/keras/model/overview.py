"""The facts by which people compare models: optimizer, learning rate, loss, size, and the table of layers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class ModelOverview:
    """A short description of a compiled model.

    ``settings`` are ``opt_name`` (the optimizer's class), ``opt_learning_rate`` and the optimizer's other active
    settings, with the names of ``mlflow.tensorflow.autolog``; ``loss``; and ``total_params`` and ``trainable_params``,
    if the model is built. ``summary`` is the output of ``model.summary()``.
    """

    settings: dict[str, str] = field(default_factory=dict)
    summary: str = ""


def overview(model: keras.Model, losses: Mapping[str, str]) -> ModelOverview:
    """The overview of a compiled model. Its `losses` are by output name; one for all outputs is under ``""``."""
    settings = _optimizer(model.optimizer)
    settings.update({f"loss.{output}" if output else "loss": loss for output, loss in losses.items()})
    if model.built:
        settings["total_params"] = str(model.count_params())
        settings["trainable_params"] = str(sum(math.prod(weight.shape) for weight in model.trainable_weights))
    lines: list[str] = []
    with _nothing_displayed():
        model.summary(print_fn=lambda line, *_, **__: lines.append(line))
    return ModelOverview(settings, "\n".join(lines))


def _nothing_displayed() -> AbstractContextManager[Any]:
    """Captures the summary. In notebooks, Rich would display an empty block even if its text is captured."""
    if "IPython" not in sys.modules:
        return nullcontext()
    from IPython.utils.capture import capture_output

    captured: AbstractContextManager[Any] = capture_output(stdout=False, stderr=False, display=True)
    return captured


def _optimizer(optimizer: Any) -> dict[str, str]:
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of one that scales losses
    try:
        config = inner.get_config()
    except NotImplementedError:  # of a schedule without ``get_config``, which Keras needs only to save it
        config = {}
    config["name"] = type(inner).__name__  # not its own name, which Keras numbers
    return {f"opt_{name}": _text(value) for name, value in config.items() if value is not None and value is not False}


def _text(value: Any) -> str:
    """A setting as text. Keras keeps numbers as float32; the shortest text of one is what the user wrote."""
    return str(np.float32(value)) if isinstance(value, float) else str(value)
