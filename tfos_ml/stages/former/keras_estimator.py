"""``tfos_ml.keras_estimator.KerasEstimator``, as saved pipelines may name it."""

from tfos_ml.stages.keras_estimator import KerasEstimator

__all__ = ["KerasEstimator"]
