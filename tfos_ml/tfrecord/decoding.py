"""Serialized Examples and SequenceExamples -> Arrow columns, all records of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.tfrecord.entries import Problems, Spans, named_spans
from tfos_ml.tfrecord.feature_types import BYTES, FLOAT, LIST_NAMES, Column
from tfos_ml.tfrecord.framing import binary
from tfos_ml.tfrecord.protobuf import rewritten
from tfos_ml.tfrecord.wire import (
    Array,
    Buffer,
    field_at,
    floats_at,
    gather,
    integers,
    padded,
    single_integers,
    split,
)

_ITEM = 1  # number of the field in each list that has the values, and of FeatureList


@dataclass(frozen=True)
class Decoded:
    """The columns of some records, and the reasons why some records cannot be read."""

    columns: list[pa.Array]
    problems: dict[int, str]  # by number of the record, whose values in the columns are undefined


def decode_records(records: pa.LargeBinaryArray, columns: Sequence[Column], record_type: str) -> Decoded:
    """Decode serialized messages without nulls."""
    data, bounds = _contents(records)
    return decode(data, bounds[:-1], bounds[1:], columns, record_type)


def decode(data: Array, start: Array, end: Array, columns: Sequence[Column], record_type: str) -> Decoded:
    """Decode the serialized messages at ``data[start:end]``; `data` ends with ``PADDING`` bytes.

    Messages with an unusual encoding are first rewritten with the protobuf library.
    """
    arrays, problems = _decode(data, start, end, columns, record_type)
    if not problems.unusual.any():
        return Decoded(arrays, problems.reasons)
    data, start, end, unreadable = _usual(data, start, end, problems.unusual, record_type)
    arrays, problems = _decode(data, start, end, columns, record_type)
    message = f"it is not a valid {record_type}"
    problems.mark(np.array([*unreadable, *np.flatnonzero(problems.unusual)], np.int64), message)
    return Decoded(arrays, problems.reasons)


def _usual(
    data: Array, start: Array, end: Array, unusual: Array, record_type: str
) -> tuple[Array, Array, Array, list[int]]:
    """Rewrite the unusual messages; also return the numbers of those that cannot be parsed."""
    parts: list[bytes] = [data[a:z].tobytes() for a, z in zip(start.tolist(), end.tolist(), strict=True)]
    unreadable = []
    for row in np.flatnonzero(unusual).tolist():
        message = rewritten(parts[row], record_type)
        parts[row] = message or b""
        if message is None:
            unreadable.append(row)
    data, bounds = _contents(pa.array(parts, pa.large_binary()))
    return data, bounds[:-1], bounds[1:], unreadable


def _contents(records: pa.LargeBinaryArray) -> tuple[Array, Array]:
    """The bytes of all records with ``PADDING``, and the offset of each record in them."""
    if not len(records):
        return padded(np.zeros(0, np.uint8)), np.zeros(1, np.int64)
    bounds = np.frombuffer(records.buffers()[1], np.int64)[records.offset : records.offset + len(records) + 1]
    content = records.buffers()[2]
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    return padded(data[bounds[0] : bounds[-1]]), bounds - bounds[0]


def _decode(
    data: Array, start: Array, end: Array, columns: Sequence[Column], record_type: str
) -> tuple[list[pa.Array], Problems]:
    problems = Problems(np.zeros(len(start), bool))
    buffer = Buffer.of(data)
    in_lists = {c.name for c in columns if c.ndim}
    in_context = {c.name for c in columns if c.ndim < 2}
    messages = Spans(np.arange(len(start)), start, end)
    features, feature_lists = named_spans(buffer, messages, record_type, in_context, in_lists, problems)
    arrays = []
    for column in columns:
        decoder = Decoder(buffer, column, problems)
        decoded = []
        if column.name in features:
            decoded.append(decoder.features(features[column.name], len(start)))
        if column.name in feature_lists:
            decoded.append(decoder.feature_lists(feature_lists[column.name], len(start)))
        arrays.append(pc.coalesce(*decoded) if decoded else pa.nulls(len(start), column.type))
    return arrays, problems


@dataclass(frozen=True)
class Decoder:
    """Makes an Arrow array from the features of one column."""

    buffer: Buffer
    column: Column
    problems: Problems

    def features(self, spans: Spans, count: int) -> pa.Array:
        """The column of `count` records, from single features."""
        return self._rows(spans, count, spans.rows, self.column.ndim)

    def feature_lists(self, spans: Spans, count: int) -> pa.Array:
        """The column of `count` records, from feature lists: each item of an array is a feature."""
        owner, start, end, wrong = split(self.buffer, spans.start, spans.end, _ITEM)
        self._expect(~wrong, spans.rows)
        items = Spans(np.arange(len(owner)), start, end)
        inner = self._rows(items, len(owner), spans.rows[owner], self.column.ndim - 1)
        bounds = _bounds(np.bincount(owner, minlength=len(spans.rows)))
        return _placed(_shaped(bounds, inner, self.column, self.column.ndim), spans.rows, count)

    def _rows(self, spans: Spans, count: int, records: Array, ndim: int) -> pa.Array:
        """`count` rows, null except for ``spans.rows``; `records` has the number of the record of each span."""
        is_left = spans.start < spans.end
        arrays, places = [], []
        for list_type in sorted(LIST_NAMES, key=lambda list_type: list_type not in self.column.lists):
            if not is_left.any():
                break
            begin, finish, is_there = field_at(self.buffer, spans.start, spans.end, list_type >> 3)
            chosen = np.flatnonzero(is_there & (finish == spans.end))
            is_left[chosen] = False
            if len(chosen) and list_type in self.column.lists:
                values, bounds = self._items(list_type, begin[chosen], finish[chosen], records[chosen], ndim)
                arrays.append(self._of_each(values, bounds, records[chosen], ndim))
                places.append(spans.rows[chosen])
            elif len(chosen):
                wanted = " or ".join(LIST_NAMES[tag] for tag in self.column.lists)
                self._mark(records[chosen], f"is a {LIST_NAMES[list_type]}", f"is read from {wanted}")
        self.problems.unusual[records[is_left]] = True
        if not arrays:
            return pa.nulls(count, _type_at(self.column, ndim))
        return _placed(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), np.concatenate(places), count)

    def _mark(self, records: Array, feature: str, column: str) -> None:
        """Record that a feature does not fit its column: what the feature is, and what the column takes."""
        text = f"feature '{self.column.name}' {feature}, but its column, {self.column.type}, {column}"
        self.problems.mark(records, text)

    def _of_each(self, values: pa.Array, bounds: Array, records: Array, ndim: int) -> pa.Array:
        """One array per list, or for a scalar column the single value; null for an empty list."""
        if ndim:
            return _shaped(bounds, values, self.column, ndim)
        counts = np.diff(bounds)
        if len(values) == len(counts) and (not len(counts) or counts.max() == 1):
            return values
        several = counts > 1
        if several.any():
            self._mark(records[several], f"has {counts[several][0]} values", "takes one")
        return values.take(pa.array(np.where(counts > 0, bounds[:-1], 0), mask=counts == 0))

    def _items(self, list_type: int, start: Array, end: Array, records: Array, ndim: int) -> tuple[pa.Array, Array]:
        """The concatenated values of lists of one type, in the type of the column, and the offset of each list."""
        if list_type == BYTES:
            return self._bytes(start, end, records)
        begin, finish, _ = field_at(self.buffer, start, end, _ITEM)
        self._expect(finish == end, records)
        read = self._floats if list_type == FLOAT else self._integers
        values, bounds = read(begin, finish, records, ndim)
        return self._fitted(pa.array(values), bounds, records), bounds

    def _expect(self, fits: Array, records: Array) -> None:
        self.problems.unusual[records[~fits]] = True

    def _floats(self, begin: Array, end: Array, records: Array, ndim: int) -> tuple[Array, Array]:
        size = end - begin
        if not ndim and len(size) and size.min() == size.max() == 4:
            return floats_at(self.buffer, begin), np.arange(len(size) + 1)
        self._expect(size % 4 == 0, records)
        data, offsets = gather(self.buffer, begin, end - size % 4)
        return data.view("<f4"), offsets // 4

    def _integers(self, begin: Array, end: Array, records: Array, ndim: int) -> tuple[Array, Array]:
        values = None if ndim else single_integers(self.buffer, begin, end)
        if values is not None:
            return values, np.arange(len(begin) + 1)
        values, bounds, wrong = integers(*gather(self.buffer, begin, end))
        self._expect(~wrong, records)
        return values, bounds

    def _bytes(self, start: Array, end: Array, records: Array) -> tuple[pa.Array, Array]:
        owner, begin, finish, wrong = split(self.buffer, start, end, _ITEM)
        self._expect(~wrong, records)
        bounds = _bounds(np.bincount(owner, minlength=len(start)))
        data, offsets = gather(self.buffer, begin, finish)
        return self._fitted(binary(data, offsets), bounds, records), bounds

    def _fitted(self, values: pa.Array, bounds: Array, records: Array) -> pa.Array:
        """Cast values to the type of the column. Values that do not fit become null, and a problem of their record."""
        if values.type == self.column.element:
            return values
        try:
            return _cast(values, self.column.element)
        except pa.ArrowInvalid:
            pass
        fits = np.ones(len(values), bool)
        for i in range(len(values)):  # rare, so it may be slow
            try:
                _cast(values.slice(i, 1), self.column.element)
            except pa.ArrowInvalid:
                fits[i] = False
        lists = np.searchsorted(bounds, np.flatnonzero(~fits), side="right") - 1
        reason = "cannot hold it"
        if self.column.element in (pa.string(), pa.large_string()):
            reason += ": it is not UTF-8. Read it as binary (option binaryFeatures, or a schema)"
        self._mark(records[lists], "has a value out of range or in another format", reason)
        return _cast(values.take(pa.array(np.arange(len(values)), mask=~fits)), self.column.element)


def _cast(values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Cast values; raises ``ArrowInvalid`` if one is out of range or not UTF-8."""
    if pa.types.is_floating(arrow_type):
        return pc.cast(values, arrow_type, safe=False)  # whole numbers are rounded
    if pa.types.is_decimal(arrow_type) and not pa.types.is_floating(values.type):
        return pc.cast(pc.cast(values, pa.string()), arrow_type)
    return pc.cast(values, arrow_type)


def _type_at(column: Column, ndim: int) -> pa.DataType:
    """The type within a column that has `ndim` levels of arrays."""
    arrow_type = column.type
    for _ in range(column.ndim - ndim):
        arrow_type = arrow_type.value_type
    return arrow_type


def _bounds(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)])


def _shaped(bounds: Array, values: pa.Array, column: Column, ndim: int) -> pa.Array:
    """Values as arrays of the type that the column has at level `ndim`, or as vectors."""
    arrow_type = _type_at(column, ndim)
    if column.is_vector:
        lists = pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values)
        dense = pa.array(np.ones(len(lists), np.int8))
        nothing = [pa.nulls(len(lists), arrow_type.field(i).type) for i in (1, 2)]
        return pa.StructArray.from_arrays(
            [dense, *nothing, lists.cast(arrow_type.field(3).type)], fields=list(arrow_type)
        )
    if pa.types.is_large_list(arrow_type):
        return pa.LargeListArray.from_arrays(pa.array(bounds), values, type=arrow_type)
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values, type=arrow_type)


def _placed(array: pa.Array, rows: Array, count: int) -> pa.Array:
    """An array of `count` rows with the values at `rows`, and null elsewhere."""
    if len(rows) == count and (count < 2 or (rows[1:] > rows[:-1]).all()):
        return array
    places = np.full(count, -1)
    places[rows] = np.arange(len(rows))
    return array.take(pa.array(places, mask=places < 0))
