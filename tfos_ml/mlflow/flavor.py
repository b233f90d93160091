"""The MLflow flavor ``tfos_ml``: saves and loads a ``TFModel`` as an MLflow model.

The directory ``data`` of the MLflow model has ``saved_model``, which TensorFlow Serving can also serve;
``scoring.json``, which tells a pyfunc how to call it; and ``stage.json`` with the Params, history and summary of the
``TFModel``.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import mlflow.pyfunc  # takes a while, so it is not left to the middle of a fit
from mlflow.models import Model

from tfos_ml import errors
from tfos_ml.common.directories import owned_prefix
from tfos_ml.common.optional_packages import version_of
from tfos_ml.mlflow import packages, pyfunc, versions
from tfos_ml.mlflow.signature import as_example, columns_of, model_signature

if TYPE_CHECKING:
    from mlflow.models.model import ModelInfo
    from mlflow.models.signature import ModelSignature

    from tfos_ml.stages.tf_model import TFModel

FLAVOR_NAME = "tfos_ml"
MODULE = "tfos_ml.mlflow"
DATA = "tf_model"
STAGE_FILE = "stage.json"


def save_model(
    model: TFModel,
    path: str,
    *,
    signature: ModelSignature | None = None,
    input_example: Any = None,
    mlflow_model: Model | None = None,
    validate_serving_input: bool = True,
    **options: Any,
) -> None:
    """Save a ``TFModel`` as an MLflow model in a local directory.

    Parameters
    ----------
    model : TFModel
        The model. For a ``PipelineModel``, pass its ``TFModel`` stage.
    path : str
        A new or empty directory.
    signature : mlflow.models.ModelSignature, optional
        The default is made from the signature of the SavedModel and the Params
        (:func:`tfos_ml.mlflow.signature.model_signature`).
    input_example : pandas.DataFrame or dict of str to arrays, optional
        A few rows of the feature columns.
    mlflow_model : mlflow.models.Model, optional
        Passed by MLflow.
    validate_serving_input : bool, default True
        Whether MLflow tests a logged model with `input_example`. The test loads TensorFlow into this process.
    **options
        Options of ``mlflow.pyfunc.save_model``: ``conda_env``, ``pip_requirements`` (default: the versions of
        TensorFlow and the other packages in this process), ``extra_pip_requirements``, ``code_paths``, ``metadata``.
        If tfos_ml is on ``sys.path`` but not installed, its code is added to ``code_paths``.

    Raises
    ------
    ParamError
        If `model` is not a ``TFModel``.

    Examples
    --------
    >>> tfos_ml.mlflow.save_model(model, "/tmp/digits")                     # doctest: +SKIP
    >>> mlflow.pyfunc.load_model("/tmp/digits").predict(pandas_df)
    """
    from tfos_ml.stages.tf_model import scoring_at

    _check(model)
    if not {"conda_env", "pip_requirements"} & {k for k, v in options.items() if v is not None}:
        options["pip_requirements"] = packages.pip_requirements()
    scoring = scoring_at(model, Path(pyfunc.SAVED_MODEL))
    example = as_example(input_example, scoring)
    mlflow_model = Model() if mlflow_model is None else mlflow_model
    mlflow_model.add_flavor(
        FLAVOR_NAME,
        data=f"data/{DATA}",
        tfos_ml_version=version_of("tfos_ml"),
        tensorflow_version=version_of("tensorflow"),
    )
    # Not passed as an argument, because MLflow would warn if there is no example.
    mlflow_model.signature = signature or model_signature(scoring, None if example is None else columns_of(example))
    with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
        data = Path(directory) / DATA
        _write(model, scoring, data)
        if added := packages.code_paths(Path(directory)):
            options["code_paths"] = [*(options.get("code_paths") or []), *added]
        mlflow.pyfunc.save_model(
            path, loader_module=MODULE, data_path=str(data), mlflow_model=mlflow_model, input_example=example, **options
        )


def log_model(
    model: TFModel,
    name: str = "model",
    *,
    registered_model_name: str | None = None,
    signature: ModelSignature | None = None,
    input_example: Any = None,
    **options: Any,
) -> ModelInfo:
    """Log a ``TFModel`` as an MLflow model to the active run, or to a new run.

    Parameters
    ----------
    model : TFModel
        The model.
    name : str, default "model"
        Name of the logged model.
    registered_model_name : str, optional
        Name under which to register the model.
    signature, input_example
        As for :func:`save_model`.
    **options
        Options of :func:`save_model` and of ``mlflow.models.Model.log``: ``run_id``, ``metadata``,
        ``await_registration_for``, and with MLflow 3 ``step``, ``params``, ``tags``, ``model_type``, ``model_id``.

    Returns
    -------
    mlflow.models.model.ModelInfo
        Information about the logged model, including ``model_uri``.

    Examples
    --------
    >>> with mlflow.start_run():                                            # doctest: +SKIP
    ...     model = estimator.fit(df)
    ...     info = tfos_ml.mlflow.log_model(model, registered_model_name="digits")
    """
    _check(model)
    return versions.log(
        name,
        flavor=importlib.import_module(MODULE),
        registered_model_name=registered_model_name,
        model=model,
        signature=signature,
        input_example=input_example,
        **options,
    )


def load_model(model_uri: str, dst_path: str | None = None) -> TFModel:
    """Load an MLflow model of this flavor as a ``TFModel``.

    Parameters
    ----------
    model_uri : str
        For example ``models:/digits/1``, ``runs:/<run id>/model`` or a directory.
    dst_path : str, optional
        Local directory to download to. The default is a temporary directory.

    Raises
    ------
    ModelError
        If the MLflow model does not have this flavor.
    """
    from tfos_ml.inference.archive import Archive
    from tfos_ml.stages.persistence import restore
    from tfos_ml.stages.tf_model import MODEL_FILE, TFModel

    with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
        path = Path(mlflow.artifacts.download_artifacts(artifact_uri=model_uri, dst_path=dst_path or directory))
        flavors = Model.load(path).flavors
        if FLAVOR_NAME not in flavors:
            raise errors.ModelError(
                f"{model_uri} does not have the flavor {FLAVOR_NAME!r}. Its flavors: {sorted(flavors)}. Load it with "
                "one of these, for example mlflow.pyfunc.load_model."
            )
        data = path / flavors[FLAVOR_NAME]["data"]
        metadata = json.loads((data / STAGE_FILE).read_text())
        model: TFModel = restore(TFModel, metadata, {MODEL_FILE: Archive.of(data / pyfunc.SAVED_MODEL).file}, model_uri)
        return model


def _check(model: Any) -> None:
    from tfos_ml.stages.tf_model import TFModel

    if not isinstance(model, TFModel):
        stages = [type(stage).__name__ for stage in getattr(model, "stages", [])]
        hint = f" with the stages {stages}; pass its TFModel stage" if stages else ""
        raise errors.ParamError(
            f"tfos_ml.mlflow saves and logs a TFModel. Received: {type(model).__name__}{hint}. Use "
            "mlflow.spark.log_model for a whole pipeline, and mlflow.tensorflow.log_model for a Keras model."
        )


def _write(model: TFModel, scoring: Any, data: Path) -> None:
    """Write the data directory of the MLflow model."""
    from tfos_ml.stages.persistence import metadata_of, without_secrets

    model._packed().unpack(data / pyfunc.SAVED_MODEL)
    pyfunc.write_scoring(scoring, data)
    (data / STAGE_FILE).write_text(json.dumps(without_secrets(metadata_of(model)), indent=1))
