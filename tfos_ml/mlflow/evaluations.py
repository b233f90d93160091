"""Logs what evaluations of a fitted model return to the run of its fit."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric

from tfos_ml.mlflow import content
from tfos_ml.mlflow.runs import Run

UNNAMED = "dataset"


def log_evaluation(run: Run, dataset: Any, metrics: Mapping[str, float]) -> None:
    """Log metrics of a dataset, each with the name of the caller's variable, as autologging of scikit-learn does.

    A second evaluation under the same name is the next step.
    """
    client, now, suffix = MlflowClient(run.tracking_uri), int(time.time() * 1000), _variable_of(dataset)
    for metric, value in metrics.items():
        name = content.metric_name(f"{metric}_{suffix}")
        step = len(client.get_metric_history(run.run_id, name))
        client.log_batch(run.run_id, metrics=[Metric(name, value, now, step)])


def _variable_of(value: Any) -> str:
    """The name of a variable outside of tfos_ml that has a value, seen from here; ``dataset`` if there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tfos_ml"):
        frame = frame.f_back  # type: ignore[assignment]
    names = [name for name, held in frame.f_locals.items() if held is value] if frame is not None else []
    return names[0] if names else UNNAMED
