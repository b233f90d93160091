"""Logs the whole ``PipelineModel``, with Spark's flavor, in addition to the ``TFModel`` of a fit in ``Pipeline.fit``.

A fit does not know the other stages of its pipeline. So ``Pipeline._fit`` is replaced while ``autolog`` is on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mlflow.environment_variables import MLFLOW_DFS_TMP
from mlflow.exceptions import MlflowException
from mlflow.models import infer_signature

from tfos_ml.common.directories import owned_prefix
from tfos_ml.common.sessions import is_connect
from tfos_ml.errors import DestinationError
from tfos_ml.mlflow import models, packages, patching

if TYPE_CHECKING:
    from mlflow.models.signature import ModelSignature
    from pyspark.ml import PipelineModel
    from pyspark.sql import DataFrame, SparkSession

NAME = "pipeline"
_CONNECT = "pyspark.ml.connect"


class LogsPipelines(Protocol):
    """The listener of a fit; logs the pipeline of which the fitted model is a stage."""

    def log_pipeline(self, model: PipelineModel, dataset: DataFrame) -> None:
        """Log the pipeline; must not raise."""


_fits: ContextVar[list[LogsPipelines] | None] = ContextVar("tfos_ml_fits_of_pipeline", default=None)
"""The logged fits within the pipeline that this thread fits; None if it fits no pipeline."""


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
    return _fits.get() is not None and not is_connect(dataset.sparkSession)


def note(fit: LogsPipelines) -> None:
    """Note that the model of a fit in this thread has been logged."""
    fits = _fits.get()
    if fits is not None:
        fits.append(fit)


def _followed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fit(self: Any, dataset: DataFrame) -> Any:
        if _fits.get() is not None:  # within another pipeline, which is logged as a whole
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
    run_id: str,
    model: PipelineModel,
    dataset: DataFrame,
    *,
    step: int,
    not_read: Collection[str] = (),
    registered: str | None = None,
) -> None:
    """Log a pipeline that was fitted on `dataset`; the run may have ended. Small Spark jobs write the pipeline.

    `step` is the last epoch, `registered` the name to register the pipeline under. The columns `not_read`, such as
    labels, are only for training, so they are not inputs.
    Raises ``DestinationError`` if executors would write parts of the pipeline to their local disks.
    """
    import mlflow.spark

    with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory, _connect_is_optional():
        models.log(
            NAME,
            flavor=mlflow.spark,
            run_id=run_id,
            **models.at_step(step),
            spark_model=model,
            registered_model_name=registered,
            dfs_tmpdir=_directory_for(dataset.sparkSession, directory),
            signature=_signature(_inputs(model, dataset.drop(*not_read))),
            pip_requirements=packages.pip_requirements("pyspark"),
            code_paths=packages.code_paths(Path(directory)) or None,
        )


@contextlib.contextmanager
def _connect_is_optional() -> Iterator[None]:
    """Within it, importing Spark ML of Connect raises ImportError where PySpark would end the program.

    MLflow imports it to save any model, and takes an ImportError for a no. PySpark 4.2 and 4.3 call ``sys.exit(0)``
    instead if the packages of Connect are missing and the program has no file (``python -c``, ``python -``,
    pytest-xdist).
    """
    try:
        importlib.import_module(_CONNECT)
    except SystemExit:
        sys.modules[_CONNECT] = None  # type: ignore[assignment]
    except ImportError:
        pass
    try:
        yield
    finally:
        if sys.modules.get(_CONNECT, ...) is None:
            del sys.modules[_CONNECT]


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


def _inputs(model: PipelineModel, dataset: DataFrame) -> DataFrame:
    """The columns that Params of the stages name; all columns if the pipeline needs others, too."""
    named = "\n".join(_texts(model))
    unread = [name for name in dataset.columns if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", named)]
    inputs = dataset.drop(*unread)
    try:
        model.transform(inputs)
    except Exception:  # for example if a user's stage has the name of a column in its code
        return dataset
    return inputs


def _texts(stage: Any) -> Iterator[str]:
    """The values of all Params of a fitted stage, and of the stages within it, as texts."""
    for inner in [*getattr(stage, "stages", ()), *filter(None, [getattr(stage, "bestModel", None)])]:
        yield from _texts(inner)
    for param in stage.params:
        value = stage.getOrDefault(param) if stage.isDefined(param) else None
        yield from (str(part) for part in (value if isinstance(value, (list, tuple, dict)) else [value]))


def _signature(dataset: DataFrame) -> ModelSignature | None:
    """The signature of these columns; None if MLflow does not know one of the types."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Hint: Inferred schema contains integer", UserWarning)
        try:
            return infer_signature(dataset)
        except MlflowException:
            return None
