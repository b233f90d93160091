"""Arrow columns of a batch -> NumPy arrays; see the table in :mod:`tfos_ml.data.schema`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.common.redact import redact
from tfos_ml.data.arrow_lists import levels, list_array, list_lengths
from tfos_ml.data.schema import IMAGE_FIELDS, VECTOR_FIELDS, Array, ColumnSpec
from tfos_ml.data.vectors import dense, is_vector, narrowed, vector_lists, vector_sizes
from tfos_ml.errors import NullValueError, ShapeError


def to_storage(array: pa.Array, spec: ColumnSpec | None = None) -> pa.Array:
    """Convert a column from Spark to its storage form: numbers or text, or nested lists of them.

    Dates become days, timestamps microseconds, and decimals float64. Vectors become lists of float64, with the zeros of
    sparse ones, but stay vectors in a wide column. Images become lists of shape (height, width, channels).

    Raises ``ShapeError`` if the data of an image does not have its declared size, or a struct is neither a vector nor
    an image.
    """
    arrow_type = array.type
    if spec is not None and spec.is_wide:
        return narrowed(array, spec.dtype)
    if pa.types.is_struct(arrow_type):
        names = [field.name for field in arrow_type]
        if names not in (IMAGE_FIELDS, VECTOR_FIELDS):
            raise ShapeError(
                f"A struct of {names} is no tensor; expected a vector, an image, or a field of the struct."
            )
        return _image_lists(array) if names == IMAGE_FIELDS else vector_lists(array)
    target = _plain_type(arrow_type)
    return array if target == arrow_type else array.cast(target)


def spec_of(arrow_type: pa.DataType, name: str, column: str) -> ColumnSpec:
    """The spec of a feature column, derived from the Arrow type of its :func:`to_storage` form."""
    ndim = 0
    while pa.types.is_list(arrow_type):
        arrow_type, ndim = arrow_type.value_type, ndim + 1
    dtype = str(arrow_type).removeprefix("large_")  # spark.sql.execution.arrow.useLargeVarTypes
    return ColumnSpec(name, column, "feature", dtype, ndim)


def _plain_type(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_list(arrow_type):
        return pa.list_(_plain_type(arrow_type.value_type))
    if pa.types.is_date(arrow_type):
        return pa.int32()
    if pa.types.is_decimal(arrow_type):
        return pa.float64()
    return pa.int64() if pa.types.is_timestamp(arrow_type) else arrow_type


def _image_lists(array: pa.Array) -> pa.Array:
    """Images of Spark's image schema as lists of lists of lists of uint8."""
    origins, *sizes, _, data = array.flatten()
    heights, widths, channels = (s.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) for s in sizes)
    byte_counts = pc.binary_length(data).fill_null(0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(byte_counts != heights * widths * channels)
    if len(wrong):
        h, w, c = (int(n[wrong[0]]) for n in (heights, widths, channels))
        origin = redact(str(origins[int(wrong[0])].as_py()))
        if h < 0:  # as Spark marks it
            raise ShapeError(
                f"Spark could not read the image {origin!r}. Remove the file, or read the images with "
                'spark.read.format("image").option("dropInvalid", True), which leaves such files out.'
            )
        raise ShapeError(
            f"The image {origin!r} of {h} x {w} pixels and {c} channels has {byte_counts[wrong[0]]} bytes of data, "
            f"expected {h * w * c}."
        )
    pixels = np.frombuffer(b"".join(data.drop_null().to_pylist()), np.uint8)
    by_pixel = list_array(np.repeat(channels, heights * widths), pa.array(pixels))
    by_row = list_array(np.repeat(widths, heights), by_pixel)
    return list_array(heights, by_row, array.is_null())


_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)


def value_bytes(array: pa.Array) -> int:
    """Bytes of the values of a column in plain form, and 4 for the length of each list or text.

    Unlike ``nbytes``, the result is a sum over rows, for any division into batches.
    """
    arrow_type = array.type
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return 4 * len(array) + value_bytes(array.flatten())
    if any(is_kind(arrow_type) for is_kind in _TEXTS):
        return 4 * len(array) + (pc.sum(pc.binary_length(array)).as_py() or 0)
    if pa.types.is_struct(arrow_type):
        return sum(map(value_bytes, array.flatten()))
    return len(array) * max(1, arrow_type.bit_width // 8)


def count_nulls(array: pa.Array) -> int:
    """Number of nulls in an array, at all levels of nesting."""
    return sum(level.null_count for level in levels(array))


def rows_with_nulls(array: pa.Array) -> Array:
    """Places of the rows that hold a null at any level, in order; shape ``(n,)``, int64."""
    places: list[Array] = []
    ends: list[Array] = []
    for level in levels(array):
        rows = np.flatnonzero(level.is_null().to_numpy(zero_copy_only=False))
        for end in reversed(ends):
            rows = np.searchsorted(end, rows, side="right")
        places.append(rows)
        if pa.types.is_list(level.type):
            ends.append(np.cumsum(list_lengths(level)))
    return np.unique(np.concatenate(places))


def null_error(nulls: int, rows: int, spec: ColumnSpec) -> NullValueError:
    """The error for a column with nulls."""
    return NullValueError(
        f"Column '{spec.column}' has {nulls} null value(s) among {rows} rows read together, and no tensor "
        "can hold a null. Fill or drop them before fit (df.na.fill, df.na.drop), or set handleInvalid='skip' to "
        "leave such rows out."
    )


Extents = list[tuple[int, int]]
RowShape = tuple[int | None, ...]


def list_extents(array: pa.Array) -> Extents:
    """Shortest and longest length at each level of nesting, or size of vectors; ``[]`` for scalars or no rows."""
    if is_vector(array.type):
        sizes = vector_sizes(array.drop_null())
        return [(int(sizes.min()), int(sizes.max()))] if len(sizes) else []
    bounds = [pc.min_max(pc.list_value_length(level)) for level in levels(array)[:-1] if len(level)]
    return [(limits["min"].as_py(), limits["max"].as_py()) for limits in bounds]


def merge_extents(many: Iterable[Extents]) -> Extents:
    """The combined extents of several arrays."""
    merged: Extents = []
    for extents in many:
        for level, (low, high) in enumerate(extents):
            if level == len(merged):
                merged.append((low, high))
            else:
                merged[level] = (min(low, merged[level][0]), max(high, merged[level][1]))
    return merged


def fixed_shape(extents: Extents, ndim: int) -> tuple[int | None, ...]:
    """Shape of a row: the length of each level, or None where rows differ."""
    shape = [low if low == high else None for low, high in extents]
    return tuple(shape + [None] * (ndim - len(shape)))


def check_extents(extents: Extents, shape: RowShape, column: str, expected: str) -> None:
    """Raise ``ShapeError`` unless rows have the `shape` of the model, None for any length of a level.

    The message uses `expected`, a description of the tensor.
    """
    if all(length is None or low == high == length for length, (low, high) in zip(shape, extents, strict=False)):
        return
    wanted = " x ".join("any number" if n is None else str(n) for n in shape)
    raise ShapeError(
        f"Column '{column}' has rows of {shown_extents(extents)}, but {expected.rstrip(',')}: {wanted} in each row. "
        "Make all rows that long, or change the model: only its dimensions of None accept rows of different lengths."
    )


def check_vector_size(extents: Extents, spec: ColumnSpec) -> None:
    """Raise ``ShapeError`` if vectors of one column have several sizes, and the model does not accept them."""
    if not spec.is_vector or spec.constraint.shape is not None or not extents or extents[0][0] == extents[0][1]:
        return
    raise ShapeError(
        f"Vector column '{spec.column}' has rows of {shown_extents(extents)}; vectors of one column must have one "
        "size. Pad them yourself, or make the column an array (pyspark.ml.functions.vector_to_array), whose rows may "
        "differ."
    )


def shown_extents(extents: Extents) -> str:
    """The lengths of rows, as text for messages."""
    lengths = " x ".join(str(low) if low == high else f"{low} to {high}" for low, high in extents)
    return f"{lengths} element{'' if lengths == '1' else 's'}"


def longest_by_row(array: pa.Array, ndim: int) -> Array:
    """Length of each row's longest array at each level of nesting, shape ``(rows, ndim)``, int64; 0 for nulls."""
    longest = np.zeros((len(array), ndim), dtype=np.int64)
    rows = np.arange(len(array))
    lengths = longest[:, 0] = list_lengths(array)
    for level in range(1, ndim):
        rows, array = np.repeat(rows, lengths), array.flatten()
        lengths = list_lengths(array)
        np.maximum.at(longest[:, level], rows, lengths)
    return longest


def to_numpy(array: pa.Array, spec: ColumnSpec, pad_value: float = 0, shape: RowShape | None = None) -> Array:
    """An array of *n* rows without nulls as one NumPy array, without a copy if all rows have the same length.

    Its shape is ``(n,)`` plus one dimension for each level of nesting, its dtype as in the table of
    :mod:`tfos_ml.data.schema`. Rows are padded with `pad_value` (text with the empty string) to the longest, and at
    least to `shape`, where that is not None.
    """
    if spec.is_wide:
        return dense(array, spec.width)
    return _dense(array, shape or (None,) * spec.ndim, _fill(spec, pad_value))


def _fill(spec: ColumnSpec, pad_value: float) -> Any:
    if spec.is_text:
        return "" if spec.dtype == "string" else b""
    return 0 if spec.role == "weight" else pad_value  # padding does not count


def _dense(array: pa.Array, shape: RowShape, fill: Any) -> Array:
    if not shape:
        return array.to_numpy(zero_copy_only=False)
    values = _dense(array.flatten(), shape[1:], fill)
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    width = max(int(lengths.max()) if len(lengths) else 0, shape[0] or 0)
    if not len(lengths) or int(lengths.min()) == width:
        return values.reshape(len(array), width, *values.shape[1:])
    padded = np.full((len(array), width, *values.shape[1:]), checked_fill(fill, values.dtype), dtype=values.dtype)
    padded[np.arange(width) < lengths[:, None]] = values
    return padded


def checked_fill(fill: Any, dtype: np.dtype[Any]) -> Any:
    """The value that fills ragged rows; ``ShapeError`` if the dtype cannot hold it."""
    with np.errstate(invalid="ignore", over="ignore"):
        fits = dtype.kind not in "iu" or np.asarray(fill).astype(dtype) == fill
    if not fits:
        raise ShapeError(f"padValue={fill} cannot fill ragged rows of {dtype}. Set padValue to a number it can hold.")
    return fill


def concat_padded(parts: Sequence[Array], spec: ColumnSpec, pad_value: float = 0) -> Array:
    """Concatenate batches of one column, padded to the longest."""
    if len(parts) == 1:
        return parts[0]
    shape = tuple(np.max([p.shape[1:] for p in parts], axis=0)) if spec.ndim else ()
    return np.concatenate([pad_rows(p, shape, spec, pad_value) for p in parts])


def pad_rows(values: Array, shape: tuple[int, ...], spec: ColumnSpec, pad_value: float = 0) -> Array:
    """A batch of one column with its rows padded to a shape."""
    if values.shape[1:] == shape:
        return values
    fill = checked_fill(_fill(spec, pad_value), values.dtype)
    padded = np.full((len(values), *shape), fill, dtype=values.dtype)
    padded[tuple(map(slice, values.shape))] = values
    return padded
