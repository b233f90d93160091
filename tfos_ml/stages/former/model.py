"""``tfos_ml.model.TFModel``, as saved pipelines may name it."""

from tfos_ml.stages.model import TFModel

__all__ = ["TFModel"]
