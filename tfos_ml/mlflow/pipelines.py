"""Logs the whole ``PipelineModel``, with Spark's flavor, in addition to the ``TFModel`` of a fit in ``Pipeline.fit``.

A fit does not know the other stages of its pipeline. So ``Pipeline._fit`` is replaced while ``autolog`` is on.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.environment_variables import MLFLOW_DFS_TMP

from tfos_ml.common.directories import owned_prefix
from tfos_ml.common.sessions import is_connect
from tfos_ml.errors import DestinationError
from tfos_ml.mlflow import packages, patching, versions

if TYPE_CHECKING:
    from pyspark.ml import PipelineModel
    from pyspark.sql import DataFrame, SparkSession

NAME = "pipeline"
_CONNECT = "pyspark.ml.connect"


_loggers: ContextVar[list[Callable[[PipelineModel], None]] | None] = ContextVar(
    "tfos_ml_pipeline_loggers", default=None
)
"""Of the logged fits within the pipeline that this thread fits; None if it fits no pipeline."""


def follow_pipelines() -> None:
    """From now on, log fitted pipelines that have stages of tfos_ml."""
    from pyspark.ml import Pipeline  # which is missing where a model is served

    patching.replace_fit(Pipeline, _followed)


def leave_pipelines() -> None:
    """Undo :func:`follow_pipelines`."""
    from pyspark.ml import Pipeline

    patching.restore_fit(Pipeline)


def is_within(dataset: DataFrame) -> bool:
    """Whether a fit in this thread is one of a pipeline that will be logged."""
    return _loggers.get() is not None and not is_connect(dataset.sparkSession)


def add_logger(log: Callable[[PipelineModel], None]) -> None:
    """After a fit in this thread: log the pipeline of which it is a stage, if it is one; `log` must not raise."""
    loggers = _loggers.get()
    if loggers is not None:
        loggers.append(log)


def _followed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fit(self: Any, dataset: DataFrame) -> Any:
        if _loggers.get() is not None:  # within another pipeline, which is logged as a whole
            return original(self, dataset)
        loggers: list[Callable[[PipelineModel], None]] = []
        token = _loggers.set(loggers)
        try:
            model = original(self, dataset)
        finally:
            _loggers.reset(token)
        if loggers and not is_connect(dataset.sparkSession):
            loggers[0](model)
        return model

    return fit


def log_pipeline(run_id: str, model: PipelineModel, spark: SparkSession, *, step: int, registered: str | None) -> None:
    """Log a pipeline with MLflow's own flavor of Spark; the run may have ended. Small Spark jobs write the pipeline.

    `step` is the last epoch, `registered` the name to register the pipeline under. Raises ``DestinationError`` if
    executors would write parts of the pipeline to their local disks.
    """
    import mlflow.spark

    _look_for_connect()
    with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
        versions.log(
            NAME,
            flavor=mlflow.spark,
            run_id=run_id,
            **versions.at_step(step),
            spark_model=model,
            registered_model_name=registered,
            dfs_tmpdir=_directory_for(spark, directory),
            pip_requirements=packages.pip_requirements("pyspark"),
            code_paths=packages.code_paths(Path(directory)) or None,
        )


def _look_for_connect() -> None:
    """Have MLflow, which asks whether a model is one of Connect, find that there is no Connect.

    If packages of Connect are missing, importing it ends a program without a file, such as a notebook, since PySpark
    4.2; elsewhere it raises ImportError, which MLflow takes for a no.
    """
    try:
        importlib.import_module(_CONNECT)
    except SystemExit:
        sys.modules[_CONNECT] = None  # type: ignore[assignment]
    except ImportError:
        pass


def _directory_for(spark: SparkSession, local: str) -> str:
    """The directory in which Spark writes the model and MLflow reads it."""
    if MLFLOW_DFS_TMP.name in os.environ:
        return os.environ[MLFLOW_DFS_TMP.name]
    if str(spark.conf.get("spark.master", "")).startswith("local"):
        return local
    default = str(MLFLOW_DFS_TMP.default)
    if spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///").startswith("file:"):
        raise DestinationError(
            f"the whole PipelineModel is not logged, because each executor would write its part to {default} on its "
            f"local disk. Set the environment variable {MLFLOW_DFS_TMP.name} to a URI on storage that all nodes reach"
        )
    return default
