"""The train function of ``KerasEstimator``. The driver sends it by name, so that it need not import Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfos_ml.worker.node_context import NodeContext


def train(task: dict[str, Any], ctx: NodeContext) -> None:
    """Train a model; `task` has the fields of :class:`tfos_ml.keras.training.KerasFit`."""
    from tfos_ml.keras import training

    training.train(training.KerasFit(**task), ctx)
