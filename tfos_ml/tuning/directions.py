"""Whether a metric is to be maximized or minimized, by its name, as ``mode="auto"`` of Keras's callbacks knows it."""

from __future__ import annotations

import re
from typing import Literal

Direction = Literal["maximize", "minimize"]
MAXIMIZE: Direction = "maximize"
MINIMIZE: Direction = "minimize"
# Names that Keras gives to its metrics, and short ones that compile() takes.
_LARGER_IS_BETTER = (
    *("accuracy", "acc", "auc", "precision", "recall", "f1_score", "fbeta_score", "r2_score", "cosine_similarity"),
    *("iou", "io_u", "mean_io_u", "binary_io_u", "one_hot_io_u", "one_hot_mean_io_u"),
    *("precision_at_recall", "recall_at_precision", "sensitivity_at_specificity", "specificity_at_sensitivity"),
    *("pearson_correlation", "concordance_correlation"),
)
_SMALLER_IS_BETTER = (
    *("loss", "mse", "mae", "mape", "msle", "error", "crossentropy", "hinge", "poisson", "kl_divergence", "log_cosh"),
    *("logcosh", "huber"),
)


def direction_of(metric: str) -> Direction | None:
    """The direction of a metric in the history of a fit, such as ``val_accuracy``; None if its name does not say it."""
    name = re.sub(r"_\d+$", "", f"_{metric}")  # Keras numbers the second metric of a class
    if name.endswith(tuple(f"_{word}" for word in _LARGER_IS_BETTER)):
        return MAXIMIZE
    return MINIMIZE if name.endswith(tuple(f"_{word}" for word in _SMALLER_IS_BETTER)) else None
