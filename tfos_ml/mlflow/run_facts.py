"""The Params, tags, dataset and errors that are logged for a fit."""

from __future__ import annotations

import os
import platform
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.spark_dataset import SparkDataset
from mlflow.data.spark_dataset_source import SparkDatasetSource
from mlflow.tracking.context import registry

from tfos_ml.common.optional_packages import version_of
from tfos_ml.common.redact import is_secret, redact, secrets_of_environment, without_credentials
from tfos_ml.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tfos_ml.stages.cluster_estimator import ClusterEstimator

PARAM_CHARACTERS = 6000  # MLflow's limit
NOT_LOGGED = "(not logged)"
_SIMPLE = (str, int, float, bool, list, tuple, type(None))
_PACKAGES = ("tfos_ml", "tensorflow", "keras", "pyspark", "pyarrow")
_ALWAYS = ("clusterSize", "epochs", "batchSize")  # logged even if they have their defaults


def params_of(estimator: ClusterEstimator) -> dict[str, str]:
    """The Params to log, by name: those that are set, and a few that are useful to compare runs.

    The user's own arguments are included as ``modelArgs.name`` and ``tfArgs.name``. The values of ``nodeEnv``, users
    and passwords in any value, and values whose names look like secrets, are left out.
    """
    logged = [p for p in estimator.params if estimator.isSet(p) or p.name in _ALWAYS]
    values: dict[str, Any] = {p.name: estimator.getOrDefault(p) for p in logged}
    if values.get("nodeEnv"):
        values["nodeEnv"] = sorted(values["nodeEnv"])
    tf_args = getattr(estimator, "getTfArgs", lambda: None)()
    user_arguments = {"tfArgs": tf_args, "modelArgs": values.pop("modelArgs", None)}
    for param, arguments in user_arguments.items():
        values.update(flat(param, arguments))
    given = {name: without_credentials(value) for name, value in values.items() if value is not None}
    return {name: redact(value, mark="")[:PARAM_CHARACTERS] for name, value in given.items()}


def flat(prefix: str, arguments: Any) -> dict[str, Any]:
    """The simple values among a user's arguments as ``prefix.name``, without secrets."""
    arguments = arguments if isinstance(arguments, Mapping) else getattr(arguments, "__dict__", {})
    simple = {str(name): value for name, value in arguments.items() if isinstance(value, _SIMPLE)}
    return {f"{prefix}.{name}": _shown(name, value) for name, value in simple.items()}


def _shown(name: str, value: Any) -> Any:
    """The value, or a text in place of a secret."""
    if not isinstance(value, (str, list, tuple)):
        return value
    return NOT_LOGGED if is_secret(name) else redact(value, mark="")


def tags_of(estimator: ClusterEstimator) -> dict[str, str]:
    """Tags with the estimator, the number of nodes by role, and versions."""
    return {
        **class_tags(estimator),
        "tfos_ml.uid": estimator.uid,
        "tfos_ml.cluster": _shape(estimator),
        "python.version": platform.python_version(),
        **{f"{package}.version": version for package in _PACKAGES if (version := version_of(package)) is not None},
    }


def class_tags(stage: Any) -> dict[str, str]:
    """The tags by which MLflow's own autologging names an estimator or a search."""
    return {
        "estimator_name": type(stage).__name__,
        "estimator_class": f"{type(stage).__module__}.{type(stage).__name__}",
    }


def _shape(estimator: ClusterEstimator) -> str:
    """The number of nodes by role; empty if the Params are invalid."""
    try:
        roles = Counter(node.job_name for node in estimator._template(estimator.getClusterSize()).nodes)
    except InvalidInputError:
        return ""
    return ", ".join(f"{role}: {count}" for role, count in roles.items())


def metric_name(name: str) -> str:
    """Replace the characters that MLflow does not allow in names of metrics."""
    return re.sub(r"[^\w\-. /:]", "_", name)


class FittedDataset(SparkDataset):
    """The DataFrame of a fit, with the numbers of rows that training counted."""

    def __init__(self, df: DataFrame, rows: Mapping[str, int]):
        self._rows = dict(rows)
        super().__init__(df, _source(df))

    @property
    def schema(self) -> Any:
        """The columns; hides MLflow's hint about integers, which is meant for model signatures."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Hint: Inferred schema contains integer", UserWarning)
            return super().schema

    @property
    def profile(self) -> dict[str, int]:
        """Numbers of rows."""
        return self._rows


def _source(df: DataFrame) -> Any:
    """The directory of the input files, or the program if there are no input files."""
    files = df.inputFiles()
    if not files:
        return CodeDatasetSource(registry.resolve_tags())
    path = files[0] if len(files) == 1 else os.path.commonprefix(files).rpartition("/")[0]  # noqa: RUF071  (cut at a slash)
    return SparkDatasetSource(path=redact(path, mark=""))


def error_text(error: BaseException, environment: Mapping[str, str]) -> str:
    """An error with traceback and details, without passwords and values of ``nodeEnv``."""
    text = "".join(traceback.format_exception(error))
    details = getattr(error, "details", "")
    return redact(text + (f"\n{details}\n" if details else ""), secrets=secrets_of_environment(environment))


def error_summary(error: BaseException, environment: Mapping[str, str]) -> str:
    """The class and message of an error, without passwords and values of ``nodeEnv``."""
    return redact(f"{type(error).__name__}: {error}", secrets=secrets_of_environment(environment))


def grid_point(params: Mapping[Any, Any]) -> dict[str, str]:
    """A param map by name; ``nodeEnv`` has only the names of its variables."""
    values: dict[str, Any] = {}
    for param, value in params.items():
        if param.name == "nodeEnv":
            values[param.name] = sorted(value)
        else:
            values.update(flat(param.name, value) if isinstance(value, Mapping) else {param.name: _shown("", value)})
    return {name: str(value) for name, value in values.items()}
