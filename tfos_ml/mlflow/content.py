"""What is logged of a fit: Params, tags, dataset, errors."""

from __future__ import annotations

import itertools
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

from tfos_ml.common.redact import is_secret, redact, secrets_of_environment
from tfos_ml.errors import InvalidInputError
from tfos_ml.mlflow.packages import version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tfos_ml.stages.cluster_estimator import ClusterEstimator

PARAM_CHARACTERS = 6000  # MLflow takes no more
NOT_LOGGED = "(not logged)"
_SIMPLE = (str, int, float, bool, list, tuple, type(None))
_ALWAYS = ("clusterSize", "epochs", "batchSize")  # also where they have their defaults
_LOCATIONS = ("modelDir", "exportDir", "logDir", "initialWeights")


def params_of(estimator: ClusterEstimator) -> dict[str, str]:
    """Params that people compare runs by, by name: those that were set, and a few with their defaults.

    The user's own arguments are included, as ``modelArgs.name`` and ``tfArgs.name``. Values of ``nodeEnv``, and those
    whose names look like secrets, are not logged.
    """
    logged = [p for p in estimator.params if estimator.isSet(p) or p.name in _ALWAYS]
    values: dict[str, Any] = {p.name: estimator.getOrDefault(p) for p in logged}
    if values.get("nodeEnv"):
        values["nodeEnv"] = sorted(values["nodeEnv"])
    tf_args = getattr(estimator, "getTfArgs", lambda: None)()
    given = {"tfArgs": tf_args, "modelArgs": values.pop("modelArgs", None)}
    for location in _LOCATIONS:
        if values.get(location):
            values[location] = redact(values[location], mark="")
    for argument, arguments in given.items():
        values.update(flat(argument, arguments))
    return {name: str(value)[:PARAM_CHARACTERS] for name, value in values.items() if value is not None}


def flat(kind: str, given: Any) -> dict[str, Any]:
    """Arguments of the user's own as ``kind.name``, the simple ones, without secrets."""
    arguments = given if isinstance(given, Mapping) else getattr(given, "__dict__", {})
    simple = {str(name): value for name, value in arguments.items() if isinstance(value, _SIMPLE)}
    return {f"{kind}.{name}": _shown(name, value) for name, value in simple.items()}


def _shown(name: str, value: Any) -> Any:
    """A value that may be logged under a name."""
    if not isinstance(value, (str, list, tuple)):
        return value
    return NOT_LOGGED if is_secret(name) else redact(value, mark="")


def tags_of(estimator: ClusterEstimator) -> dict[str, str]:
    """The estimator, the shape of its cluster, and versions."""
    estimator_class = type(estimator)
    return {
        "estimator_name": estimator_class.__name__,
        "estimator_class": f"{estimator_class.__module__}.{estimator_class.__name__}",
        "tfos_ml.uid": estimator.uid,
        "tfos_ml.cluster": _shape(estimator),
        "python.version": platform.python_version(),
        **{f"{package}.version": version for package, version in _versions().items()},
    }


def _shape(estimator: ClusterEstimator) -> str:
    """How many nodes there are of each role, as far as the Params make sense."""
    try:
        roles = Counter(node.job_name for node in estimator._template().nodes)
    except InvalidInputError:
        return ""
    return ", ".join(f"{role}: {count}" for role, count in roles.items())


def metric_name(name: str) -> str:
    """A metric's name in the characters that MLflow takes."""
    return re.sub(r"[^\w\-. /:]", "_", name)


def _versions() -> dict[str, str]:
    versions = {package: version_of(package) for package in ("tfos_ml", "tensorflow", "keras", "pyspark", "pyarrow")}
    return {package: version for package, version in versions.items() if version is not None}


class FittedDataset(SparkDataset):
    """A DataFrame that was fitted on, with the numbers of rows that training counted."""

    def __init__(self, df: DataFrame, rows: Mapping[str, int]):
        self._rows = dict(rows)
        super().__init__(df, _source(df))

    @property
    def schema(self) -> Any:
        """The columns, without MLflow's hint about integers, which is for those who infer a model's signature."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Hint: Inferred schema contains integer", UserWarning)
            return super().schema

    @property
    def profile(self) -> dict[str, int]:
        """Numbers of rows."""
        return self._rows


def _source(df: DataFrame) -> Any:
    """The directory that the rows were read from, if there is one; else the program."""
    files = df.inputFiles()
    if not files:
        return CodeDatasetSource(registry.resolve_tags())
    path = files[0] if len(files) == 1 else "/".join(_shared([file.split("/")[:-1] for file in files]))
    return SparkDatasetSource(path=redact(path, mark=""))


def _shared(paths: list[list[str]]) -> list[str]:
    """The parts that paths begin with alike."""
    return [parts[0] for parts in itertools.takewhile(lambda p: len(set(p)) == 1, zip(*paths, strict=False))]


def error_text(error: BaseException, environment: Mapping[str, str]) -> str:
    """An error with its traceback and details, without passwords and the values of ``nodeEnv``."""
    text = "".join(traceback.format_exception(error))
    details = getattr(error, "details", "")
    return redact(text + (f"\n{details}\n" if details else ""), secrets=secrets_of_environment(environment))


def error_summary(error: BaseException, environment: Mapping[str, str]) -> str:
    """An error in a line or two; without passwords and the values of ``nodeEnv``."""
    return redact(f"{type(error).__name__}: {error}", secrets=secrets_of_environment(environment))


def grid_point(params: Mapping[Any, Any]) -> dict[str, str]:
    """A param map by names; of ``nodeEnv`` only the names of the variables."""
    values: dict[str, Any] = {}
    for param, value in params.items():
        if param.name == "nodeEnv":
            values[param.name] = sorted(value)
        else:
            values.update(flat(param.name, value) if isinstance(value, Mapping) else {param.name: _shown("", value)})
    return {name: str(value) for name, value in values.items()}
