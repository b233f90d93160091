"""``tfos_ml.estimator.TFEstimator``, as saved pipelines may name it."""

from tfos_ml.stages.estimator import TFEstimator

__all__ = ["TFEstimator"]
