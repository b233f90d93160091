"""Logs models while a fit runs, each linked to its epoch, and marks the best."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient

from tfos_ml.common.directories import owned_prefix
from tfos_ml.mlflow import models
from tfos_ml.mlflow.writer import Writer


class LoggedCheckpoints:
    """The checkpoints of one fit, logged in the writer's thread.

    ``log(archive, name, step)`` logs a packed SavedModel and returns the URI of the logged model. `monitor` is that of
    :func:`tfos_ml.mlflow.autolog`.
    """

    def __init__(self, writer: Writer, log: Callable[[bytes, str, int], str], monitor: str | None):
        self._writer = writer
        self._log = log
        self._monitor = monitor
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._scores: dict[str, float] = {}

    def add(self, report: Mapping[str, Any]) -> None:
        """Move the file of a checkpoint to a temporary directory, and queue it for logging."""
        self._directory = self._directory or tempfile.TemporaryDirectory(prefix=owned_prefix("temporary"))
        file = Path(self._directory.name) / report["name"]
        shutil.move(report["path"], file)
        self._writer.do(lambda: self._log_file(file, report))

    def _log_file(self, file: Path, report: Mapping[str, Any]) -> None:
        model_uri = self._log(file.read_bytes(), report["name"], report["epoch"])
        file.unlink()
        self._scores[model_uri] = self._score(report["metrics"])

    def _score(self, metrics: Mapping[str, float]) -> float:
        """The value to minimize; infinity if the metric is NaN or missing."""
        monitor = self._monitor or ("val_loss" if "val_loss" in metrics else "loss")
        value = metrics.get(monitor.removeprefix("-"), math.nan)
        score = -value if monitor.startswith("-") else value
        return math.inf if math.isnan(score) else score

    @property
    def best(self) -> str | None:
        """The URI of the best logged model; the earliest of equals."""
        return min(self._scores, key=lambda model_uri: self._scores[model_uri], default=None)

    def settle(self, client: MlflowClient, registered_model_name: str | None) -> None:
        """Tag the best model, and register it if a name is given."""
        best = self.best
        if best is None:
            return
        models.tag_best(client, best)
        if registered_model_name:
            mlflow.register_model(best, registered_model_name)

    def close(self) -> None:
        """Delete checkpoints that were not logged."""
        if self._directory is not None:
            self._directory.cleanup()
