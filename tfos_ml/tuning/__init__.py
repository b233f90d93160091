"""Searches for hyperparameters whose trials are fits on as many nodes as they ask for."""

from tfos_ml.tuning.optuna_search import OptunaSearch, OptunaSearchModel

__all__ = ["OptunaSearch", "OptunaSearchModel"]
