"""Logs models the way that the installed MLflow has.

MLflow 3 keeps a logged model beside runs, with an id, tags, and the step of the run that it belongs to. MLflow 2 keeps
a model as an artifact of a run.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from mlflow.models import Model

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.models.model import ModelInfo

HAS_LOGGED_MODELS = "name" in inspect.signature(Model.log).parameters
BEST_TAG = "tfos_ml.best"


def log(name: str, **options: Any) -> ModelInfo:
    """Log a model under a name; `options` are those of ``mlflow.models.Model.log``."""
    where = {"artifact_path": None, "name": name} if HAS_LOGGED_MODELS else {"artifact_path": name}
    return Model.log(**where, **options)


def at_step(step: int) -> dict[str, int]:
    """The option of :func:`log` that links a model to a step of its run; none with MLflow 2."""
    return {"step": step} if HAS_LOGGED_MODELS else {}


def tag_best(client: MlflowClient, model_uri: str) -> None:
    """Tag a logged model as the best. An artifact has no tags: its run gets one with its name."""
    scheme, _, place = model_uri.partition(":/")
    if scheme == "models":
        client.set_logged_model_tags(place, {BEST_TAG: "true"})
    else:
        run_id, _, name = place.partition("/")
        client.set_tag(run_id, BEST_TAG, name)
