"""The Arrow UDF that runs a SavedModel over batches of columns.

==============================  =========================================
Output of the model             Column
==============================  =========================================
``(batch,)``                    a scalar of the corresponding type
``(batch, n)``, ``(batch, ?)``  ``array<...>``
``(batch, n, m)``               ``array<array<...>>``: a level per dimension
==============================  =========================================

uint8, uint16 and uint32 become the next wider signed type, float16 and bfloat16 become float. A string tensor becomes a
string column, or a binary column if ``binaryOutputs`` names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa

from tfos_ml.data.arrow import count_nulls, rows_with_nulls
from tfos_ml.data.casting import TensorInfo, row_shape
from tfos_ml.data.row_checks import is_finite, not_finite_error, rows_not_finite
from tfos_ml.data.schema import Array, ColumnSpec
from tfos_ml.errors import ModelError, NullValueError, SignatureError
from tfos_ml.excerpt import message_excerpt
from tfos_ml.inference import archive, saved_model
from tfos_ml.inference.input_tensors import InputBinding, ModelInput, storage_for
from tfos_ml.inference.prediction import PredictionSpec, classify
from tfos_ml.inference.row_blocks import RowBlocks
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.codec import MessageError, decode, encode

_OUTPUT_TYPES = {
    "int8": pa.int8(),
    "uint8": pa.int16(),
    "int16": pa.int16(),
    "uint16": pa.int32(),
    "int32": pa.int32(),
    "uint32": pa.int64(),
    "int64": pa.int64(),
    "float16": pa.float32(),
    "bfloat16": pa.float32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
}


@dataclass(frozen=True)
class ScoringSpec:
    """Everything that the UDF needs; small enough to be pickled with it."""

    model: Artifact | Path  # the packed SavedModel, or the directory of one
    signature_key: str
    tag: str
    inputs: tuple[InputBinding, ...]  # in the order of the UDF's arguments
    outputs: dict[str, TensorInfo]  # outputs to compute; others are not computed
    fields: dict[str, pa.DataType]  # fields of output_fields() that the UDF returns, in order
    names: dict[str, str]  # of the fields, in the struct that several fields make
    batch_size: int
    handle_invalid: str  # "error", "keep", or "skip": here, null outputs
    pad_value: float  # fills rows up to the length that training padded them to, and shorter arrays within a row
    prediction_spec: PredictionSpec | None = None  # meaning of the only output, if it is not just a tensor
    threshold: float = 0.5


_SCORING, _DIRECTORY = b"tfos_ml.scoring", b"tfos_ml.directory"
_SEPARATE = ("model", "fields")  # fields of ScoringSpec that are encoded in ways of their own
WITHOUT_MODEL_AND_FIELDS = msgspec.defstruct(
    "Scoring", [(name, hint) for name, hint in get_type_hints(ScoringSpec).items() if name not in _SEPARATE]
)
RAW, PROBABILITY, PREDICTION = "raw", "probability", "prediction"


def output_fields(
    outputs: Mapping[str, TensorInfo], prediction_spec: PredictionSpec | None, binary: Collection[str] = ()
) -> dict[str, pa.DataType]:
    """The fields that the UDF can return: the outputs, or those that `prediction_spec` derives from the only output.

    Outputs in `binary` are binary rather than string. Raises ``SignatureError`` if an output has no Spark type.
    """
    if prediction_spec is None:
        return {name: output_type(name, tensor, name in binary) for name, tensor in outputs.items()}
    if prediction_spec.is_classifier:
        return {RAW: pa.list_(pa.float64()), PROBABILITY: pa.list_(pa.float64()), PREDICTION: pa.float64()}
    return {PREDICTION: pa.float64()}


def output_type(name: str, tensor: TensorInfo, is_binary: bool = False) -> pa.DataType:
    """The Arrow type of an output, which has a corresponding Spark type.

    Raises ``SignatureError`` if the rank is not known, if the dtype has no Spark type, or if `is_binary` but the dtype
    is not string.
    """
    if tensor.shape is None or not tensor.shape:
        raise SignatureError(
            f"Output '{name}' is {tensor}; expected a known rank, with the batch as the first dimension."
        )
    if tensor.dtype not in _OUTPUT_TYPES:
        raise SignatureError(f"Output '{name}' is {tensor}, which has no Spark type. Cast it in the model.")
    if is_binary and tensor.dtype != "string":
        raise SignatureError(f"Output '{name}' of binaryOutputs is {tensor}; expected a string tensor.")
    arrow_type = pa.binary() if is_binary else _OUTPUT_TYPES[tensor.dtype]
    for _ in tensor.shape[1:]:
        arrow_type = pa.list_(arrow_type)
    return arrow_type


def check_binding(spec: ColumnSpec, tensor: TensorInfo) -> None:
    """Raise ``SignatureError`` if a column can never fit its tensor; runs on the driver."""
    if tensor.ragged and spec.ndim != 1:
        raise SignatureError(
            f"Column '{spec.column}' has {spec.ndim} levels of arrays, but input '{spec.name}' is {tensor}; "
            "expected one."
        )
    if spec.is_text != (tensor.dtype == "string"):
        raise SignatureError(
            f"Column '{spec.column}' holds {spec.dtype}, but input '{spec.name}' expects {tensor}. "
            "Bind another column, or cast it."
        )
    if not tensor.ragged and row_shape(spec.ndim, tensor) is None:
        raise SignatureError(
            f"Column '{spec.column}' has {spec.ndim} level(s) of arrays, which cannot become input '{spec.name}', "
            f"{tensor}. Bind another column (pyspark.ml.feature.VectorAssembler makes one of several), or reshape it."
        )


def without_model_and_fields(scoring: ScoringSpec) -> dict[str, Any]:
    """All else that the UDF needs, to be encoded; ``WITHOUT_MODEL_AND_FIELDS`` is its type."""
    return {name: value for name, value in vars(scoring).items() if name not in _SEPARATE}


def encode_scoring(scoring: ScoringSpec, directory: Path) -> bytes:
    """Encode how to call a model in a directory, for another process.

    The result is an Arrow schema of the fields; its metadata has the rest.
    """
    metadata = {_SCORING: encode(without_model_and_fields(scoring)), _DIRECTORY: os.fsencode(directory)}
    encoded: bytes = pa.schema(list(scoring.fields.items()), metadata).serialize().to_pybytes()
    return encoded


def decode_scoring(content: bytes) -> ScoringSpec:
    """Decode the result of :func:`encode_scoring`; raises ``ValueError`` for anything else."""
    schema = pa.ipc.read_schema(pa.py_buffer(content))
    metadata = schema.metadata or {}
    if metadata.keys() != {_SCORING, _DIRECTORY}:
        raise MessageError(f"a description of a model has other metadata: {sorted(metadata)}")
    rest = msgspec.structs.asdict(decode(WITHOUT_MODEL_AND_FIELDS, metadata[_SCORING]))
    fields = dict(zip(schema.names, schema.types, strict=True))
    return ScoringSpec(model=Path(os.fsdecode(metadata[_DIRECTORY])), fields=fields, **rest)


def columns_of(batch: tuple[pa.Array, ...] | pa.Array) -> list[pa.Array]:
    """The columns of a batch; Spark passes a single column without a tuple."""
    return list(batch) if isinstance(batch, tuple) else [batch]


def score_here(scoring: ScoringSpec, columns: list[pa.Array]) -> pa.Array:
    """Score one Arrow batch in this process, which loads the model once; see :func:`score_batch`."""
    return score_batch(scoring, columns, partial(score_block, scoring, load_function(scoring)))


def score_batch(scoring: ScoringSpec, columns: list[pa.Array], score: Callable[[list[pa.Array]], pa.Array]) -> pa.Array:
    """Score one Arrow batch; returns a struct of the fields, or the only field itself.

    `score` calls :func:`score_block`, here or in another process.
    """
    blocks = RowBlocks([binding.tensor for binding in scoring.inputs], columns, scoring.batch_size)
    parts = [score(block) for block in blocks]
    return blocks.in_order(concatenated(parts)) if parts else _column(scoring, {})


def score_block(scoring: ScoringSpec, function: saved_model.Scorer, columns: list[pa.Array]) -> pa.Array:
    """Score a block of rows of one shape; a null input gives a null result, unless ``handleInvalid`` is "error"."""
    looks_for_nan = scoring.handle_invalid != "keep" and not all(map(is_finite, columns))
    columns = [storage_for(column, binding.tensor) for column, binding in zip(columns, scoring.inputs, strict=True)]
    valid = _valid_rows(scoring, columns, looks_for_nan)
    if valid is None:
        return _column(scoring, _run(scoring, function, columns))
    kept = valid.to_numpy(zero_copy_only=False)
    if not kept.any():
        return _column(scoring, {name: pa.nulls(len(kept), arrow_type) for name, arrow_type in scoring.fields.items()})
    places = pa.array(np.cumsum(kept) - 1, mask=~kept)
    scored = _run(scoring, function, [c.filter(valid) for c in columns])
    return _column(scoring, {name: array.take(places) for name, array in scored.items()})


def _column(scoring: ScoringSpec, outputs: Mapping[str, pa.Array]) -> pa.Array:
    """The result column of outputs by field name; an empty column if there are no outputs."""
    arrays = [outputs[name] if outputs else pa.array([], arrow_type) for name, arrow_type in scoring.fields.items()]
    if len(arrays) == 1:
        return arrays[0]
    return pa.StructArray.from_arrays(arrays, [scoring.names[name] for name in scoring.fields])


def concatenated(arrays: list[pa.Array]) -> pa.Array:
    """Concatenate arrays of one type; a single array is not copied."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _valid_rows(scoring: ScoringSpec, columns: list[pa.Array], looks_for_nan: bool) -> pa.Array | None:
    """A mask of the rows without nulls, and without NaN if those are skipped; None if all rows are valid."""
    valid = np.ones(len(columns[0]), dtype=bool)
    for binding, column in zip(scoring.inputs, columns, strict=True):
        nulls = count_nulls(column)
        if nulls:
            if scoring.handle_invalid == "error":
                raise NullValueError(
                    f"Column '{binding.column}' has {nulls} null value(s) in a batch of {len(column)} rows, and "
                    "handleInvalid='error' allows no nulls. Fill or drop them, or set handleInvalid to 'skip' or "
                    "'keep'."
                )
            valid[rows_with_nulls(column)] = False
        if not looks_for_nan:
            continue
        rows = rows_not_finite(column)
        if len(rows) and scoring.handle_invalid == "error":
            raise not_finite_error(column, binding.column, rows)
        valid[rows] = False
    return None if valid.all() else pa.array(valid)


def _run(scoring: ScoringSpec, function: saved_model.Scorer, columns: list[pa.Array]) -> dict[str, pa.Array]:
    """Run the model on columns in storage form without nulls, `batch_size` rows at a time; arrays by field name."""
    types = scoring.fields
    inputs = [ModelInput(*bound, scoring.pad_value) for bound in zip(scoring.inputs, columns, strict=True)]
    results: dict[str, list[Array]] = {name: [] for name in scoring.outputs}
    rows = len(columns[0])
    for start in range(0, rows, scoring.batch_size):
        stop = min(start + scoring.batch_size, rows)
        tensors: dict[str, Any] = {}
        for bound in inputs:
            tensors.update(bound.tensors(start, stop))
        returned = run_model(function, tensors, scoring.inputs)
        for name, tensor in scoring.outputs.items():
            results[name].append(checked_output(name, tensor, returned, stop - start))
    if scoring.prediction_spec is None:
        return {name: output_array(name, results[name], arrow_type) for name, arrow_type in types.items()}
    (parts,) = results.values()
    values = np.concatenate(parts)
    if not scoring.prediction_spec.is_classifier:
        return {PREDICTION: pa.array(values.reshape(rows).astype(np.float64))}
    predictions = classify(values, scoring.prediction_spec, scoring.threshold)
    return {
        name: nested(pa.array(predictions[name].reshape(-1)), predictions[name].shape, arrow_type)
        for name, arrow_type in types.items()
    }


def run_model(
    function: saved_model.Scorer, tensors: Mapping[str, Any], inputs: Sequence[InputBinding]
) -> Mapping[str, Any]:
    """Call the model; if TensorFlow raises an error, raises ``ModelError`` with the names of the columns."""
    try:
        return function(**tensors)
    except Exception as error:
        bound = ", ".join(f"column '{b.column}' as input '{b.name}', {b.tensor}" for b in inputs)
        cause = _cause(error)
        raise ModelError(f"The model failed on rows of {bound}. {cause}") from error


def _cause(error: Exception) -> str:
    """The error of a model's call, also if TensorFlow's message quotes bytes of a damaged record."""
    if isinstance(error, UnicodeDecodeError):
        return message_excerpt(bytes(error.object).decode(errors="backslashreplace"))
    return f"{type(error).__name__}: {message_excerpt(str(error))}"


def load_function(scoring: ScoringSpec) -> saved_model.Scorer:
    """Load the function of the model, once per process; raises ``ModelError`` if that fails."""
    signature = scoring.signature_key, scoring.tag, tuple(scoring.outputs)
    if isinstance(scoring.model, Path):
        return saved_model.load(scoring.model, *signature)
    try:
        return saved_model.load(archive.unpacked(scoring.model), *signature)
    except ModelError:
        archive.unpack_again(scoring.model)
        return saved_model.load(archive.unpacked(scoring.model), *signature)


def checked_output(name: str, tensor: TensorInfo, results: Mapping[str, Any], rows: int) -> Array:
    """The NumPy values of one output; raises ``SignatureError`` if their number of rows is wrong."""
    values: Array = results[name].numpy()
    if values.ndim == 0 or len(values) != rows:
        raise SignatureError(
            f"The model returned shape {values.shape} for output '{name}', given {rows} rows; expected {tensor}."
        )
    return values


def output_array(name: str, parts: Sequence[Array], arrow_type: pa.DataType) -> pa.Array:
    """Concatenate the results of all calls for one output to an Arrow array of type `arrow_type`.

    Raises ``SignatureError`` if bytes are not UTF-8 but `arrow_type` is string.
    """
    if len({part.shape[1:] for part in parts}) == 1:
        parts = [np.concatenate(parts)]
    arrays = [
        nested(_flat_array(name, part.reshape(-1), element_type(arrow_type)), part.shape, arrow_type) for part in parts
    ]
    return concatenated(arrays)


def element_type(arrow_type: pa.DataType) -> pa.DataType:
    """The innermost value type of nested lists."""
    while pa.types.is_list(arrow_type):
        arrow_type = arrow_type.value_type
    return arrow_type


def _flat_array(name: str, values: Array, arrow_type: pa.DataType) -> pa.Array:
    if values.dtype != object:
        return pa.array(values.astype(arrow_type.to_pandas_dtype(), copy=False), arrow_type)
    try:
        return pa.array(values if arrow_type == pa.binary() else [v.decode() for v in values], arrow_type)
    except UnicodeDecodeError as error:
        raise SignatureError(
            f"Output '{name}' returned bytes that are not UTF-8 text: {error}. Add it to binaryOutputs."
        ) from None


def nested(array: pa.Array, shape: tuple[int, ...], arrow_type: pa.DataType) -> pa.Array:
    """Nest a flat Arrow array to shape ``(rows, ...)`` and type `arrow_type`, with lists for further dimensions."""
    for axis in range(len(shape) - 1, 0, -1):
        rows = int(np.prod(shape[:axis]))
        offsets = np.arange(rows + 1) * shape[axis]
        array = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), array)
    return array.cast(arrow_type)  # sets the names of inner fields


def nested_array(values: Array) -> pa.Array:
    """Convert NumPy values of shape ``(rows, ...)`` to an Arrow array, with lists for further dimensions."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    arrow_type = flat.type
    for _ in values.shape[1:]:
        arrow_type = pa.list_(arrow_type)
    return nested(flat, values.shape, arrow_type)
