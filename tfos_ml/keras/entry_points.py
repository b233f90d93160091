"""The train function of ``KerasEstimator``, and that of ``evaluate``. The driver sends them by name, without Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfos_ml.worker.node_context import NodeContext


def train(task: dict[str, Any], ctx: NodeContext) -> None:
    """Train a model; `task` has the fields of :class:`tfos_ml.keras.build.KerasFit`."""
    from tfos_ml.keras import build, training

    training.train(build.KerasFit(**task), ctx)


def evaluate(task: dict[str, Any], ctx: NodeContext) -> None:
    """Evaluate a model; `task` has the fields of :class:`tfos_ml.keras.build.KerasFit`."""
    from tfos_ml.keras import build, evaluation

    evaluation.evaluate(build.KerasFit(**task), ctx)
