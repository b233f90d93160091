"""Listeners to fits. There are none, unless ``tfos_ml.mlflow.autolog`` sets one up.

A listener must not raise, and must not delay a fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfos_ml.protocol.messages import Report
from tfos_ml.protocol.node_task import Telemetry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tfos_ml.driver.attempt import RunResult
    from tfos_ml.stages.cluster_estimator import ClusterEstimator
    from tfos_ml.stages.tf_model import TFModel


class FitListener:
    """Listens to one fit; this base class does nothing."""

    telemetry = Telemetry()  # what nodes send in addition to their metrics

    def reported(self, reports: Sequence[Report]) -> None:
        """New metrics have arrived while the job runs; called several times a second."""

    def trained(self, result: RunResult) -> None:
        """The job has ended well."""

    def fitted(self, model: TFModel) -> None:
        """``fit`` is about to return this model."""

    def failed(self, error: BaseException) -> None:
        """``fit`` is about to raise this error."""


class Listening:
    """Creates the listeners."""

    def begin(self, estimator: ClusterEstimator, dataset: DataFrame) -> FitListener:
        """The listener of a fit that begins."""
        return FitListener()

    def evaluated(self, model: TFModel, dataset: DataFrame, metrics: Mapping[str, float]) -> None:
        """``model.evaluate(dataset)`` is about to return these metrics."""


current = Listening()
"""Creates a listener for each fit of this process."""
