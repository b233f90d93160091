"""Reads Spark ML's attribute metadata of a column, known before any job: width of vectors, number of classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfos_ml.data.casting import TensorInfo, row_shape
from tfos_ml.data.schema import ColumnSpec
from tfos_ml.errors import ShapeError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_UNKNOWN_LABEL = "__unknown"  # class of all other labels with StringIndexer(handleInvalid="keep")
_SHOWN_NAMES = 8


def _attributes(given: StructType, column: str) -> dict[str, Any]:
    metadata = [field.metadata for field in given.fields if field.name == column]
    about: dict[str, Any] = metadata[0].get("ml_attr", {}) if metadata else {}
    return about


def vector_names(given: StructType, column: str) -> list[str] | None:
    """Names of the elements of a vector column from VectorAssembler; None if unknown."""
    about = _attributes(given, column)
    named = {a["idx"]: a.get("name", "?") for group in about.get("attrs", {}).values() for a in group if "idx" in a}
    size = about.get("num_attrs", len(named))
    return [str(named.get(i, "?")) for i in range(size)] if size else None


def class_count(given: StructType, column: str) -> int | None:
    """Number of classes of a label column from StringIndexer; None if unknown."""
    about = _attributes(given, column)
    if about.get("type") not in ("nominal", "binary"):
        return None
    values = list(about.get("vals", ()))
    if values and values[-1] == _UNKNOWN_LABEL:
        values.pop()  # rows of that class may, or may not, be there
    count: int | None = len(values) or about.get("num_vals")
    return count


def check_vector_width(given: StructType, spec: ColumnSpec, tensor: TensorInfo) -> None:
    """Raise ``ShapeError`` if a vector column is known to have another width than an input takes."""
    names = vector_names(given, spec.column) if spec.is_vector else None
    shape = row_shape(spec.ndim, tensor)
    if names is None or not shape or shape[0] in (None, len(names)):
        return
    shown = f" ({', '.join(names[:_SHOWN_NAMES])}{', ...' if len(names) > _SHOWN_NAMES else ''})"
    change = "inputCols of the VectorAssembler that made it"
    if set(names) == {"?"}:  # as of HashingTF, which names no elements
        shown, change = "", "their size in the stage that made them, such as numFeatures of HashingTF"
    raise ShapeError(
        f"Column '{spec.column}' holds vectors of {len(names)} elements{shown}, but input '{spec.name}' expects "
        f"{tensor}: {shape[0]} in each row. Change {change}, or the model's Input."
    )
