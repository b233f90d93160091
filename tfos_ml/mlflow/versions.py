"""Logs models the way that the installed MLflow has.

MLflow 3 keeps a logged model beside runs, with an id, tags, and the step of the run that it belongs to. MLflow 2 keeps
a model as an artifact of a run.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from mlflow.models import Model

if TYPE_CHECKING:
    from mlflow.models.model import ModelInfo

HAS_LOGGED_MODELS = "name" in inspect.signature(Model.log).parameters


def log(name: str, **options: Any) -> ModelInfo:
    """Log a model under a name; `options` are those of ``mlflow.models.Model.log``."""
    where = {"artifact_path": None, "name": name} if HAS_LOGGED_MODELS else {"artifact_path": name}
    return Model.log(**where, **options)


def at_step(step: int) -> dict[str, int]:
    """The option of :func:`log` that links a model to a step of its run; none with MLflow 2."""
    return {"step": step} if HAS_LOGGED_MODELS else {}
