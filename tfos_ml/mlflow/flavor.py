"""The MLflow flavor ``tfos_ml``: a ``TFModel`` as an MLflow model, and back.

An MLflow model holds, under ``data``: ``saved_model``, as TensorFlow Serving takes it;
``scoring.json``, how it is called (all that a pyfunc needs); and ``stage.json``, the Params,
history and summary of the ``TFModel``.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import mlflow.pyfunc  # otherwise loaded, which takes a while, in the middle of a fit
from mlflow.models import Model

from tfos_ml import errors
from tfos_ml.common.redact import redact
from tfos_ml.mlflow import packages, pyfunc
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
        The model. From a ``PipelineModel``, pass the stage.
    path : str
        A directory that does not exist or is empty.
    signature : mlflow.models.ModelSignature, optional
        Default: made from the SavedModel's signature and the Params, see
        :func:`tfos_ml.mlflow.signature.model_signature`.
    input_example : pandas.DataFrame or dict of str to arrays, optional
        A few rows of the feature columns.
    mlflow_model : mlflow.models.Model, optional
        Given by MLflow.
    validate_serving_input : bool, default True
        Option of MLflow: whether a logged model is tested with `input_example`, which loads TensorFlow into this
        process.
    **options
        Options of ``mlflow.pyfunc.save_model``: ``conda_env``, ``pip_requirements`` (default: the versions of
        TensorFlow and the other packages in this process), ``extra_pip_requirements``, ``code_paths``, ``metadata``.
        If tfos_ml is not installed but only found on the path, its code is saved as one of ``code_paths``.

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
        tfos_ml_version=packages.version_of("tfos_ml"),
        tensorflow_version=packages.version_of("tensorflow"),
    )
    # Not as an argument: MLflow would warn of models that have no example.
    mlflow_model.signature = signature or model_signature(scoring, None if example is None else columns_of(example))
    with tempfile.TemporaryDirectory(prefix="tfos_ml-") as directory:
        data = Path(directory) / DATA
        _write(model, scoring, data)
        if added := packages.code_paths(Path(directory)):
            options["code_paths"] = [*(options.get("code_paths") or []), *added]
        with warnings.catch_warnings():  # MLflow 3.9 warns of pickles, though here are none
            warnings.filterwarnings("ignore", "Passing a Python object as `python_model`", FutureWarning)
            mlflow.pyfunc.save_model(
                path,
                loader_module=MODULE,
                data_path=str(data),
                mlflow_model=mlflow_model,
                input_example=example,
                **options,
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
    """Log a ``TFModel`` as an MLflow model of the active run, or of a new one.

    Parameters
    ----------
    model : TFModel
        The model.
    name : str, default "model"
        Name of the logged model.
    registered_model_name : str, optional
        Registered under this name.
    signature, input_example
        As for :func:`save_model`.
    **options
        Options of :func:`save_model` and of ``mlflow.models.Model.log``: ``step``, ``params``, ``tags``,
        ``model_type``, ``model_id``, ``run_id``, ``metadata``, ``await_registration_for``.

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
    return Model.log(
        artifact_path=None,
        name=name,
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
        Local directory to download to; the default is a temporary one.

    Raises
    ------
    ModelError
        If it is of another flavor.
    """
    from tfos_ml.inference.archive import Archive
    from tfos_ml.stages.persistence import restore
    from tfos_ml.stages.tf_model import MODEL_FILE, TFModel

    with tempfile.TemporaryDirectory(prefix="tfos_ml-") as directory:
        path = Path(mlflow.artifacts.download_artifacts(artifact_uri=model_uri, dst_path=dst_path or directory))
        flavors = Model.load(path).flavors
        if FLAVOR_NAME not in flavors:
            raise errors.ModelError(
                f"{model_uri} has no flavor {FLAVOR_NAME!r}, but {sorted(flavors)}. Load it with one of those, for "
                "instance mlflow.pyfunc.load_model."
            )
        data = path / flavors[FLAVOR_NAME]["data"]
        metadata = json.loads((data / STAGE_FILE).read_text())
        model: TFModel = restore(
            TFModel, metadata, {MODEL_FILE: Archive.of(data / pyfunc.SAVED_MODEL).content}, model_uri
        )
        return model


def _check(model: Any) -> None:
    from tfos_ml.stages.tf_model import TFModel

    if not isinstance(model, TFModel):
        stages = [type(stage).__name__ for stage in getattr(model, "stages", [])]
        hint = f" whose stages are {stages}: pass the TFModel among them" if stages else ""
        raise errors.ParamError(
            f"tfos_ml.mlflow logs a TFModel. Received: {type(model).__name__}{hint}. For all stages of a pipeline use "
            "mlflow.spark.log_model, for a Keras model mlflow.tensorflow.log_model."
        )


def _write(model: TFModel, scoring: Any, data: Path) -> None:
    """The content of an MLflow model's data directory."""
    from tfos_ml.stages.persistence import describe
    from tfos_ml.stages.tf_model import archive_of

    archive_of(model).unpack(data / pyfunc.SAVED_MODEL)
    pyfunc.write_scoring(scoring, data)
    (data / STAGE_FILE).write_text(json.dumps(_shareable(describe(model)), indent=1))


def _shareable(described: dict[str, Any]) -> dict[str, Any]:
    """A model without a password in ``exportDir``, which a model that holds its SavedModel does not read again."""
    given = described["paramMap"]
    if "exportDir" in given:
        given = {**given, "exportDir": redact(given["exportDir"], mark="")}
    return {**described, "paramMap": given}
