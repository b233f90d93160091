"""The pyfunc of a model: takes and returns pandas objects, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tfos_ml.inference import udf
from tfos_ml.inference.local_scoring import score_rows

if TYPE_CHECKING:
    import pandas as pd

SAVED_MODEL = "saved_model"
SCORING_FILE = "scoring.json"


def write_scoring(scoring: udf.ScoringSpec, directory: Path) -> None:
    """Write how to call a model to a file beside it."""
    binary = [name for name, arrow_type in scoring.fields.items() if udf.element_type(arrow_type) == pa.binary()]
    kept = {**msgspec.to_builtins(udf.without_model_and_fields(scoring)), "binary": binary}
    (directory / SCORING_FILE).write_text(json.dumps(kept, indent=1))


def read_scoring(directory: Path) -> udf.ScoringSpec:
    """Read the file that :func:`write_scoring` wrote; the SavedModel is in the same directory."""
    kept = json.loads((directory / SCORING_FILE).read_text())
    rest = msgspec.structs.asdict(msgspec.convert(kept, udf.WITHOUT_MODEL_AND_FIELDS))
    fields = udf.output_fields(rest["outputs"], rest["prediction_spec"], kept["binary"])
    fields = {name: fields[name] for name in rest["names"]}
    return udf.ScoringSpec(model=(directory / SAVED_MODEL).absolute(), fields=fields, **rest)


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
    return pd.Series(values, index=index, dtype=values.dtype)  # else pandas 3 would replace None by NaN in text


def _load_pyfunc(path: str) -> ServedModel:
    """Called by ``mlflow.pyfunc.load_model``."""
    return ServedModel(read_scoring(Path(path)))
