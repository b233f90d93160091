"""The whole ``PipelineModel``, by Spark's own flavor, beside the ``TFModel`` of a fit within ``Pipeline.fit``.

``Pipeline._fit`` is replaced as long as ``autolog`` is on: a fit does not know of the stages around it.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mlflow.environment_variables import MLFLOW_DFS_TMP
from mlflow.exceptions import MlflowException
from mlflow.models import Model, infer_signature

from tfos_ml.common.sessions import is_connect
from tfos_ml.errors import DestinationError
from tfos_ml.mlflow import packages, patching

if TYPE_CHECKING:
    from mlflow.models.signature import ModelSignature
    from pyspark.ml import PipelineModel
    from pyspark.sql import DataFrame, SparkSession

NAME = "pipeline"


class LogsPipelines(Protocol):
    """What follows a fit, and can log the pipeline that it was a stage of."""

    def log_pipeline(self, model: PipelineModel, dataset: DataFrame) -> None:
        """Log it; must not raise."""


_fits: ContextVar[list[LogsPipelines] | None] = ContextVar("tfos_ml_fits_of_pipeline", default=None)
"""The fits within the pipeline that this thread fits; None outside of one."""


def follow_pipelines() -> None:
    """Log fitted pipelines with our stages in them, from now on."""
    from pyspark.ml import Pipeline  # where a model is served there is none

    patching.replace_fit(Pipeline, _followed)


def leave_pipelines() -> None:
    """Put back what :func:`follow_pipelines` replaced."""
    from pyspark.ml import Pipeline

    patching.restore_fit(Pipeline)


def note(fit: LogsPipelines) -> None:
    """Take note of a fit in this thread whose model has been logged."""
    fits = _fits.get()
    if fits is not None:
        fits.append(fit)


def _followed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fit(self: Any, dataset: DataFrame) -> Any:
        if _fits.get() is not None:  # a pipeline within another, which is logged as a whole
            return original(self, dataset)
        fits: list[LogsPipelines] = []
        token = _fits.set(fits)
        try:
            model = original(self, dataset)
        finally:
            _fits.reset(token)
        if fits and not is_connect(dataset.sparkSession):
            fits[0].log_pipeline(model, dataset)
        return model

    return fit


def log_pipeline(
    run_id: str, model: PipelineModel, dataset: DataFrame, *, step: int, not_read: Collection[str] = ()
) -> None:
    """Log a pipeline fitted on `dataset` to a run, which may have ended; small Spark jobs write it.

    `step` is the last epoch; the columns `not_read` were for training alone, as labels, and so are no inputs. Raises
    ``DestinationError`` if executors of a cluster would each write their part to a disk of their own.
    """
    import mlflow.spark

    with tempfile.TemporaryDirectory(prefix="tfos_ml-") as directory:
        Model.log(
            artifact_path=None,
            name=NAME,
            flavor=mlflow.spark,
            run_id=run_id,
            step=step,
            spark_model=model,
            dfs_tmpdir=_directory_for(dataset.sparkSession, directory),
            signature=_signature(_inputs(model, dataset.drop(*not_read))),
            pip_requirements=packages.pip_requirements("pyspark"),
            code_paths=packages.code_paths(Path(directory)) or None,
        )


def _directory_for(spark: SparkSession, local: str) -> str:
    """Where Spark writes the model for MLflow to fetch."""
    if MLFLOW_DFS_TMP.name in os.environ:
        return os.environ[MLFLOW_DFS_TMP.name]
    if str(spark.conf.get("spark.master", "")).startswith("local"):
        return local
    default = str(MLFLOW_DFS_TMP.default)
    if spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///").startswith("file:"):
        raise DestinationError(
            f"the whole PipelineModel is not logged, for executors would each write their part of it to {default} on a "
            f"disk of their own. Set the environment variable {MLFLOW_DFS_TMP.name} to a URI on storage that all nodes "
            "reach"
        )
    return default


def _inputs(model: PipelineModel, dataset: DataFrame) -> DataFrame:
    """The columns that the pipeline reads: those that Params of its stages name, if these do; else all."""
    named = "\n".join(_texts(model))
    unread = [name for name in dataset.columns if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", named)]
    inputs = dataset.drop(*unread)
    try:
        model.transform(inputs)
    except Exception:  # a stage of the user's, say, that has a name in its code
        return dataset
    return inputs


def _texts(stage: Any) -> Iterator[str]:
    """What the Params of a fitted stage, and of those within it, say, but for what is no text."""
    for inner in [*getattr(stage, "stages", ()), *filter(None, [getattr(stage, "bestModel", None)])]:
        yield from _texts(inner)
    for param in stage.params:
        value = stage.getOrDefault(param) if stage.isDefined(param) else None
        yield from (str(part) for part in (value if isinstance(value, (list, tuple, dict)) else [value]))


def _signature(dataset: DataFrame) -> ModelSignature | None:
    """Of these columns; None if MLflow has no name for the type of one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Hint: Inferred schema contains integer", UserWarning)
        try:
            return infer_signature(dataset)
        except MlflowException:
            return None
