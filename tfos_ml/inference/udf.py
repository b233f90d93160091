"""The Arrow UDF that runs a SavedModel over batches of columns.

==============================  =========================================
Output of the model             Column
==============================  =========================================
``(batch,)``                    a scalar of the same width
``(batch, n)``, ``(batch, ?)``  ``array<...>``
``(batch, n, m)``               ``array<array<...>>``, one level a dimension
==============================  =========================================

uint8, uint16 and uint32 widen to the next signed type, float16 and bfloat16 to float; a
string tensor becomes a string column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.artifacts import Artifact
from tfos_ml.casting import TensorInfo, fit_to_tensor
from tfos_ml.errors import NullValueError, SignatureError
from tfos_ml.heads import Head, classify
from tfos_ml.inference import cache, saved_model
from tfos_ml.schema import Array, ColumnSpec, count_nulls, to_numpy

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_OUTPUT_TYPES = {
    "int8": ("ByteType", pa.int8()),
    "uint8": ("ShortType", pa.int16()),
    "int16": ("ShortType", pa.int16()),
    "uint16": ("IntegerType", pa.int32()),
    "int32": ("IntegerType", pa.int32()),
    "uint32": ("LongType", pa.int64()),
    "int64": ("LongType", pa.int64()),
    "float16": ("FloatType", pa.float32()),
    "bfloat16": ("FloatType", pa.float32()),
    "float32": ("FloatType", pa.float32()),
    "float64": ("DoubleType", pa.float64()),
    "bool": ("BooleanType", pa.bool_()),
    "string": ("StringType", pa.string()),
}


@dataclass(frozen=True)
class InputBinding:
    """One column bound to one input tensor."""

    spec: ColumnSpec
    tensor: TensorInfo


@dataclass(frozen=True)
class Scoring:
    """All that the UDF needs; small enough to travel in its closure.

    Attributes
    ----------
    model : Artifact
        The packed SavedModel.
    signature_key, tag : str
        Which signature of it.
    inputs : tuple of InputBinding
        In the order of the UDF's arguments.
    outputs : dict of str to TensorInfo
        Outputs wanted, by name, in the order of the result's fields.
    batch_size : int
        Rows in one call of the model, at most.
    null_policy : str
        ``"error"`` or ``"keep"``; rows to skip never get here.
    pad_value : float
        Fills ragged rows.
    head : Head or None
        What the only output means, if it means more than a tensor; None leaves outputs as they are.
    threshold : float
        Of a binary head.
    """

    model: Artifact
    signature_key: str
    tag: str
    inputs: tuple[InputBinding, ...]
    outputs: dict[str, TensorInfo]
    batch_size: int
    null_policy: str
    pad_value: float
    head: Head | None = None
    threshold: float = 0.5


RAW, PROBABILITY, PREDICTION = "raw", "probability", "prediction"


def output_fields(outputs: Mapping[str, TensorInfo], head: Head | None) -> dict[str, DataType]:
    """What the UDF returns, by name: the outputs, or what a head makes of the only one.

    Raises
    ------
    SignatureError
        If an output has no Spark type.
    """
    from pyspark.sql.types import ArrayType, DoubleType

    if head is None:
        return {name: output_type(name, tensor) for name, tensor in outputs.items()}
    if head.is_classifier:
        return {RAW: ArrayType(DoubleType()), PROBABILITY: ArrayType(DoubleType()), PREDICTION: DoubleType()}
    return {PREDICTION: DoubleType()}


def output_type(name: str, tensor: TensorInfo) -> DataType:
    """Spark type of an output.

    Raises
    ------
    SignatureError
        If its rank is not known or its dtype has no Spark type.
    """
    from pyspark.sql import types

    if tensor.shape is None or not tensor.shape:
        raise SignatureError(
            f"Output '{name}' is {tensor}: it needs a known rank with the batch as its first dimension."
        )
    if tensor.dtype not in _OUTPUT_TYPES:
        raise SignatureError(f"Output '{name}' is {tensor}, for which Spark has no type. Cast it in the model.")
    spark_type: DataType = getattr(types, _OUTPUT_TYPES[tensor.dtype][0])()
    for _ in tensor.shape[1:]:
        spark_type = types.ArrayType(spark_type)
    return spark_type


def check_binding(binding: InputBinding) -> None:
    """Raise ``SignatureError`` on the driver if a column can never fit its tensor."""
    spec, tensor = binding.spec, binding.tensor
    if spec.is_text != (tensor.dtype == "string"):
        raise SignatureError(
            f"Column '{spec.column}' holds {spec.dtype}, but input '{spec.name}' expects {tensor}. "
            "Bind another column, or cast it."
        )


def make_udf_function(scoring: Scoring) -> Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]:
    """The function that Spark calls with an iterator of batches, one Arrow array a column."""

    def score(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for batch in batches:
            yield score_batch(scoring, list(batch) if isinstance(batch, tuple) else [batch])

    return score


def score_batch(scoring: Scoring, columns: list[pa.Array]) -> pa.Array:
    """Outputs for one Arrow batch: a struct of them, or the output itself if it is the only one."""
    rows = len(columns[0])
    valid = _valid_rows(scoring, columns)
    kept = columns if valid is None else [c.filter(valid) for c in columns]
    outputs = _run(scoring, kept)
    if valid is not None:
        at = np.cumsum(valid.to_numpy(zero_copy_only=False)) - 1
        places = pa.array(at, mask=~valid.to_numpy(zero_copy_only=False))
        outputs = [o.take(places) for o in outputs]
    if any(len(o) != rows for o in outputs):
        raise SignatureError(f"The outputs have {[len(o) for o in outputs]} rows for {rows} rows of input")
    if len(outputs) == 1:
        return outputs[0]
    return pa.StructArray.from_arrays(outputs, list(output_fields(scoring.outputs, scoring.head)))


def _valid_rows(scoring: Scoring, columns: list[pa.Array]) -> pa.Array | None:
    """Which rows have no null, or None if all do."""
    valid = None
    for binding, column in zip(scoring.inputs, columns, strict=True):
        nulls = count_nulls(column, binding.spec.ndim)
        if not nulls:
            continue
        if scoring.null_policy != "keep":
            raise NullValueError(
                f"Column '{binding.spec.column}' has {nulls} null value(s) in a batch of {len(column)} rows, and "
                "nullPolicy='error' allows none. Fill or drop them, or set nullPolicy to 'skip' or 'keep'."
            )
        here = pc.is_valid(column)
        if column.null_count != nulls:
            whole = [_has_no_null(column.slice(i, 1), binding.spec.ndim) for i in range(len(column))]
            here = pa.array(whole)
        valid = here if valid is None else pc.and_(valid, here)
    return valid


def _has_no_null(row: pa.Array, ndim: int) -> bool:
    return count_nulls(row, ndim) == 0


def _run(scoring: Scoring, columns: list[pa.Array]) -> list[pa.Array]:
    """Call the model on slices of at most ``batch_size`` rows."""
    from pyspark.sql.pandas.types import to_arrow_type

    rows = len(columns[0])
    fields = output_fields(scoring.outputs, scoring.head)
    parts: dict[str, list[pa.Array]] = {name: [] for name in fields}
    function = saved_model.load(cache.extracted(scoring.model), scoring.signature_key, scoring.tag) if rows else None
    for start in range(0, rows, scoring.batch_size):
        assert function is not None
        size = min(scoring.batch_size, rows - start)
        inputs = {
            b.spec.name: input_tensor(b, c.slice(start, size), scoring.pad_value)
            for b, c in zip(scoring.inputs, columns, strict=True)
        }
        results = function(**inputs)
        for name, array in _output_arrays(scoring, results, size).items():
            parts[name].append(array)
    return [pa.concat_arrays(p) if p else pa.array([], to_arrow_type(fields[n])) for n, p in parts.items()]


def _output_arrays(scoring: Scoring, results: Mapping[str, Any], rows: int) -> dict[str, pa.Array]:
    if scoring.head is None:
        return {name: output_array(name, tensor, results, rows) for name, tensor in scoring.outputs.items()}
    ((name, tensor),) = scoring.outputs.items()
    values = checked_output(name, tensor, results, rows)
    if not scoring.head.is_classifier:
        return {PREDICTION: pa.array(values.reshape(rows).astype(np.float64))}
    arrays = classify(values, scoring.head, scoring.threshold)
    return {name: nested(pa.array(values.reshape(-1)), values.shape) for name, values in arrays.items()}


def input_tensor(binding: InputBinding, column: pa.Array, pad_value: float) -> Any:
    """A column as the tensor that the signature asks for: cast without loss, and reshaped.

    Raises
    ------
    ShapeError
        If a value cannot be cast without loss or the shapes do not fit.
    """
    spec = binding.spec
    return array_tensor(to_numpy(column, spec, pad_value), spec.column, spec.name, binding.tensor)


def array_tensor(values: Array, column: str, name: str, tensor: TensorInfo) -> Any:
    """A batch of values of a column as the tensor `name`; raises as :func:`input_tensor`."""
    import tensorflow as tf

    return tf.constant(fit_to_tensor(values, column, name, tensor), dtype=tensor.dtype)


def checked_output(name: str, tensor: TensorInfo, results: Mapping[str, Any], rows: int) -> Array:
    """One output as NumPy values.

    Raises
    ------
    SignatureError
        If the model returned another number of rows.
    """
    values: Array = results[name].numpy()
    if values.ndim == 0 or len(values) != rows:
        raise SignatureError(
            f"The model returned shape {values.shape} for output '{name}', given {rows} rows; expected {tensor}."
        )
    return values


def output_array(name: str, tensor: TensorInfo, results: Mapping[str, Any], rows: int) -> pa.Array:
    """One output tensor as an Arrow array of `rows` rows; raises as :func:`checked_output`."""
    values = checked_output(name, tensor, results, rows)
    return nested(_flat_array(name, values.reshape(-1), _OUTPUT_TYPES[tensor.dtype][1]), values.shape)


def _flat_array(name: str, values: Array, kind: pa.DataType) -> pa.Array:
    if kind != pa.string():
        return pa.array(values.astype(kind.to_pandas_dtype(), copy=False), kind)
    try:
        return pa.array([v.decode() for v in values], kind)
    except UnicodeDecodeError as error:
        raise SignatureError(f"Output '{name}' returned bytes that are no UTF-8 text: {error}") from None


def nested(array: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    """A flat Arrow array as one of a shape ``(rows, ...)``: a list for each dimension but the first."""
    for axis in range(len(shape) - 1, 0, -1):
        rows = int(np.prod(shape[:axis]))
        offsets = np.arange(rows + 1) * shape[axis]
        array = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), array)
    return array
