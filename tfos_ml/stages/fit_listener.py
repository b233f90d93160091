"""Who follows fits from outside: nobody, or what ``tfos_ml.mlflow.autolog`` has set up.

A listener must not raise, and must not hold a fit up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfos_ml.protocol.settings import Telemetry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tfos_ml.driver.fit_job import RunResult
    from tfos_ml.stages.base import ClusterEstimator
    from tfos_ml.stages.model import TFModel


class FitListener:
    """Hears of one fit; this one is not interested."""

    telemetry = Telemetry()  # what the nodes are to send besides their metrics

    def reported(self, reports: Sequence[dict[str, Any]]) -> None:
        """Metrics have come, while the job runs; called several times a second."""

    def trained(self, result: RunResult) -> None:
        """The job has ended well."""

    def fitted(self, model: TFModel) -> None:
        """The model that ``fit`` is about to return."""

    def failed(self, error: BaseException) -> None:
        """What ``fit`` is about to raise."""


class Listening:
    """Makes the listeners; does not listen itself."""

    def begin(self, estimator: ClusterEstimator, dataset: DataFrame) -> FitListener:
        """The listener of a fit that begins."""
        return FitListener()

    def adopt(self, estimator: ClusterEstimator) -> None:
        """Take note of where an estimator, whose fits may begin in other threads, is used."""


_listening = Listening()
"""Makes a listener for each fit of this process, see :func:`listen`."""


def listen(listening: Listening | None = None) -> None:
    """Have fits followed from now on; without an argument, no longer."""
    global _listening
    _listening = listening or Listening()


def listening() -> Listening:
    """Who makes the listeners now."""
    return _listening
