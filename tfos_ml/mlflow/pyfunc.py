"""The pyfunc of a model: takes and returns pandas objects, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tfos_ml.data.casting import TensorInfo
from tfos_ml.inference import udf
from tfos_ml.inference.input_tensors import InputBinding
from tfos_ml.inference.local_scoring import score_rows
from tfos_ml.inference.prediction import PredictionSpec

if TYPE_CHECKING:
    import pandas as pd

SAVED_MODEL = "saved_model"
SCORING_FILE = "scoring.json"


def write_scoring(scoring: udf.ScoringSpec, directory: Path) -> None:
    """Write how to call a model to a file beside it."""
    kept = {
        "signature_key": scoring.signature_key,
        "tag": scoring.tag,
        "inputs": [asdict(binding) for binding in scoring.inputs],
        "outputs": {name: asdict(tensor) for name, tensor in scoring.outputs.items()},
        "columns": scoring.names,
        "binary": [name for name, arrow_type in scoring.fields.items() if udf.element_type(arrow_type) == pa.binary()],
        "batch_size": scoring.batch_size,
        "handle_invalid": scoring.handle_invalid,
        "pad_value": scoring.pad_value,
        "prediction_spec": None if scoring.prediction_spec is None else asdict(scoring.prediction_spec),
        "threshold": scoring.threshold,
    }
    (directory / SCORING_FILE).write_text(json.dumps(kept, indent=1))


def read_scoring(directory: Path) -> udf.ScoringSpec:
    """Read the file that :func:`write_scoring` wrote; the SavedModel is in the same directory."""
    kept = json.loads((directory / SCORING_FILE).read_text())
    outputs = {name: TensorInfo.from_json(tensor) for name, tensor in kept["outputs"].items()}
    prediction_spec = None if kept["prediction_spec"] is None else PredictionSpec(**kept["prediction_spec"])
    fields = udf.output_fields(outputs, prediction_spec, kept["binary"])
    return udf.ScoringSpec(
        model=(directory / SAVED_MODEL).absolute(),
        signature_key=kept["signature_key"],
        tag=kept["tag"],
        inputs=tuple(InputBinding(b["column"], b["name"], TensorInfo.from_json(b["tensor"])) for b in kept["inputs"]),
        outputs=outputs,
        fields={name: fields[name] for name in kept["columns"]},
        names=kept["columns"],
        batch_size=kept["batch_size"],
        handle_invalid=kept["handle_invalid"],
        pad_value=kept["pad_value"],
        prediction_spec=prediction_spec,
        threshold=kept["threshold"],
    )


class ServedModel:
    """The model that ``mlflow.pyfunc.load_model`` wraps."""

    def __init__(self, scoring: udf.ScoringSpec):
        self._scoring = scoring

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Return the columns that ``TFModel.transform`` would append, the prediction first.

        Parameters
        ----------
        model_input : pandas.DataFrame, dict of arrays, or numpy.ndarray
            The columns that the model was fitted on, as for ``TFModel.predict``.
        params : mapping, optional
            Passed by MLflow; ignored.

        Raises
        ------
        ColumnNotFoundError
            If a column is missing.
        NullValueError, NonFiniteValueError, ShapeError
            As in ``TFModel.transform``.
        """
        import pandas as pd

        scored = score_rows(self._scoring, model_input)
        index = model_input.index if isinstance(model_input, pd.DataFrame) else None
        return pd.DataFrame({name: _series(array, index) for name, array in scored.items()})


def _series(array: pa.Array, index: Any) -> pd.Series[Any]:
    import pandas as pd

    if pa.types.is_list(array.type) and pa.types.is_list(array.type.value_type):
        return pd.Series(array.to_pylist(), index=index, dtype=object)
    values = array.to_numpy(zero_copy_only=False)
    return pd.Series(
        values, index=index, dtype=values.dtype
    )  # without the dtype, pandas 3 would replace None by NaN in text


def _load_pyfunc(path: str) -> ServedModel:
    """Called by ``mlflow.pyfunc.load_model``."""
    return ServedModel(read_scoring(Path(path)))
