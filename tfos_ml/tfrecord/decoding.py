"""Serialised Examples and SequenceExamples -> Arrow columns, all records of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.tfrecord.columns import BYTES, FLOAT, LIST_NAMES, SEQUENCE, Column
from tfos_ml.tfrecord.wire import (
    Array,
    Buffer,
    equals,
    floats_at,
    gather,
    integers,
    lengths_at,
    only_part,
    padded,
    single_integers,
    split,
    tag,
)

_ITEM = 1  # number of the field in each list that has the values, and of Features, FeatureLists and FeatureList
_KEY, _VALUE = tag(1), tag(2)
_CONTEXT, _FEATURE_LISTS = tag(1), tag(2)


@dataclass
class Problems:
    """What is wrong with records, by their number; the first thing counts."""

    unusual: Array  # a mask of the records to be read by Protocol Buffers' own library
    reasons: dict[int, str] = field(default_factory=dict)

    def mark(self, rows: Array, reason: str) -> None:
        """Tell what is wrong with some records."""
        for row in rows.tolist():
            self.reasons.setdefault(row, reason)


@dataclass(frozen=True)
class Spans:
    """The same thing in each of some records, where it is there."""

    rows: Array  # numbers of the records, ascending
    start: Array
    end: Array


@dataclass(frozen=True)
class Decoded:
    """The columns of some records, and what is wrong with records, whose values are null or any."""

    columns: list[pa.Array]
    problems: dict[int, str]


def decode_records(records: pa.LargeBinaryArray, columns: Sequence[Column], record_type: str) -> Decoded:
    """The columns that serialised messages, none of them null, hold."""
    data, bounds = contents(records)
    return decode(data, bounds[:-1], bounds[1:], columns, record_type)


def decode(data: Array, start: Array, end: Array, columns: Sequence[Column], record_type: str) -> Decoded:
    """The columns that serialised messages hold, which lie in padded bytes.

    Those that are written in an unusual way, as the wire format allows it, are first written anew by Protocol Buffers'
    own library.
    """
    arrays, problems = _decode(data, start, end, columns, record_type)
    if not problems.unusual.any():
        return Decoded(arrays, problems.reasons)
    data, start, end, unreadable = usual(data, start, end, problems.unusual, record_type)
    arrays, problems = _decode(data, start, end, columns, record_type)
    message = f"it is no {record_type}, or is damaged"
    problems.mark(np.array([*unreadable, *np.flatnonzero(problems.unusual)], np.int64), message)
    return Decoded(arrays, problems.reasons)


def usual(
    data: Array, start: Array, end: Array, unusual: Array, record_type: str
) -> tuple[Array, Array, Array, list[int]]:
    """The same messages, of which some are written anew, and those that are none."""
    from tfos_ml.tfrecord.messages import rewritten

    parts: list[bytes] = [data[a:z].tobytes() for a, z in zip(start.tolist(), end.tolist(), strict=True)]
    unreadable = []
    for row in np.flatnonzero(unusual).tolist():
        anew = rewritten(parts[row], record_type)
        parts[row] = anew or b""
        if anew is None:
            unreadable.append(row)
    data, bounds = contents(pa.array(parts, pa.large_binary()))
    return data, bounds[:-1], bounds[1:], unreadable


def contents(records: pa.LargeBinaryArray) -> tuple[Array, Array]:
    """The bytes of records, padded, and their bounds."""
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
    features, feature_lists = named_spans(buffer, start, end, record_type, in_context, in_lists, problems)
    arrays = []
    for column in columns:
        decoder = Decoder(buffer, column, problems)
        found = []
        if column.name in features:
            found.append(decoder.features(features[column.name], len(start)))
        if column.name in feature_lists:
            found.append(decoder.feature_lists(feature_lists[column.name], len(start)))
        arrays.append(pc.coalesce(*found) if found else pa.nulls(len(start), column.type))
    return arrays, problems


def named_spans(
    buffer: Buffer,
    start: Array,
    end: Array,
    record_type: str,
    in_context: set[str] | None,
    in_lists: set[str] | None,
    problems: Problems,
) -> tuple[dict[str, Spans], dict[str, Spans]]:
    """The features and the feature lists of messages, by name; None for all names."""
    if record_type == SEQUENCE:
        context, lists = _halves(buffer, start, end, problems)
        features = _entries(buffer, context, in_context, problems)
        return features, _entries(buffer, lists, in_lists, problems)
    begin, finish, wrong = only_part(buffer, start, end, _ITEM)
    problems.unusual |= wrong
    return _entries(buffer, Spans(np.arange(len(start)), begin, finish), in_context, problems), {}


def _halves(buffer: Buffer, start: Array, end: Array, problems: Problems) -> tuple[Spans, Spans]:
    """Context and feature lists of SequenceExamples, either of which may be missing."""
    position = start
    halves = []
    for wanted in (_CONTEXT, _FEATURE_LISTS):
        length, begin = lengths_at(buffer, position + 1)
        finish = begin + length
        there = (position < end) & (buffer.data[position] == wanted) & (finish <= end)
        rows = np.flatnonzero(there)
        halves.append(Spans(rows, begin[rows], finish[rows]))
        position = np.where(there, finish, position)
    problems.unusual |= position != end
    return halves[0], halves[1]


def _entries(buffer: Buffer, maps: Spans, names: set[str] | None, problems: Problems) -> dict[str, Spans]:
    """The values of the entries with given names of the maps that records have."""
    found: dict[str, list[Spans]] = {}
    active, position, ends = maps.rows, maps.start, maps.end
    more = position < ends
    while True:
        if not more.all():
            active, position, ends = active[more], position[more], ends[more]
        if not len(active):
            break
        length, begin = lengths_at(buffer, position + 1)
        finish = begin + length
        key_length, key = lengths_at(buffer, begin + 1)
        value = key + key_length
        fits = (
            (buffer.data[position] == tag(_ITEM)) & (buffer.data[begin] == _KEY) & (finish <= ends) & (value < finish)
        )
        if not fits.all():
            problems.unusual[active[~fits]] = True
            active, begin, finish, ends = active[fits], begin[fits], finish[fits], ends[fits]
            key_length, key, value = key_length[fits], key[fits], value[fits]
        value_length, value_begin = lengths_at(buffer, value + 1)
        fits = (buffer.data[value] == _VALUE) & (value_begin + value_length == finish)
        if not fits.all():
            problems.unusual[active[~fits]] = True
            active, finish, ends = active[fits], finish[fits], ends[fits]
            key_length, key, value_begin = key_length[fits], key[fits], value_begin[fits]
        for name, chosen in _by_key(buffer, key, key_length):
            if name is None:
                problems.unusual[active[chosen]] = True
            elif names is None or name in names:
                found.setdefault(name, []).append(Spans(active[chosen], value_begin[chosen], finish[chosen]))
        position, more = finish, finish < ends
    return {name: _merged(parts, problems) for name, parts in found.items()}


def _by_key(buffer: Buffer, key: Array, length: Array) -> list[tuple[str | None, Array | slice]]:
    """The keys at positions, and which of them are the same; None for one that is no UTF-8."""
    found: list[tuple[str | None, Array | slice]] = []
    rest = np.arange(len(key))
    while len(rest):
        first = int(rest[0])
        expected = buffer.data[key[first] : key[first] + length[first]].tobytes()
        is_all = len(rest) == len(key)
        same = length[rest] == len(expected) if not is_all else length == len(expected)
        same &= equals(buffer, key if is_all else key[rest], expected)
        try:
            name = expected.decode()
        except UnicodeDecodeError:
            name = None
        if is_all and same.all():
            return [(name, slice(None))]
        found.append((name, rest[same]))
        rest = rest[~same]
    return found


def _merged(parts: list[Spans], problems: Problems) -> Spans:
    """Spans in the order of records; records that have several are unusual."""
    if len(parts) == 1:
        return parts[0]
    rows, start, end = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "start", "end"))
    order = np.argsort(rows, kind="stable")
    rows, start, end = rows[order], start[order], end[order]
    again = np.append(False, rows[1:] == rows[:-1])
    if again.any():
        problems.unusual[rows[again]] = True
        rows, start, end = rows[~again], start[~again], end[~again]
    return Spans(rows, start, end)


@dataclass(frozen=True)
class Decoder:
    """Makes an Arrow array of one column of the features that hold it."""

    buffer: Buffer
    column: Column
    problems: Problems

    def features(self, spans: Spans, count: int) -> pa.Array:
        """The column of `count` records."""
        return self._rows(spans, count, spans.rows, self.column.ndim)

    def feature_lists(self, spans: Spans, count: int) -> pa.Array:
        """The column of arrays, whose items are features of their own."""
        owner, start, end, wrong = split(self.buffer, spans.start, spans.end, _ITEM)
        self.problems.unusual[spans.rows[wrong]] = True
        items = Spans(np.arange(len(owner)), start, end)
        inner = self._rows(items, len(owner), spans.rows[owner], self.column.ndim - 1)
        bounds = _bounds(np.bincount(owner, minlength=len(spans.rows)))
        return _placed(_shaped(bounds, inner, self.column, self.column.ndim), spans.rows, count)

    def _rows(self, spans: Spans, count: int, records: Array, ndim: int) -> pa.Array:
        """`count` rows, of which those at ``spans.rows`` have a feature; `records` are the records of these."""
        kinds = self.buffer.data[spans.start]
        length, begin = lengths_at(self.buffer, spans.start + 1)
        present = spans.start < spans.end
        torn = present & (begin + length != spans.end)
        self.problems.unusual[records[torn]] = True
        present &= ~torn
        arrays, places = [], []
        for kind in self.column.lists:
            chosen = np.flatnonzero(present & (kinds == kind))
            if len(chosen):
                values, bounds = self._items(kind, begin[chosen], spans.end[chosen], records[chosen], ndim)
                arrays.append(self._of_each(values, bounds, records[chosen], ndim))
                places.append(spans.rows[chosen])
                present[chosen] = False
        if present.any():
            self._mark_others(kinds, present, records)
        if not arrays:
            return pa.nulls(count, type_at(self.column, ndim))
        return _placed(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), np.concatenate(places), count)

    def _mark_others(self, kinds: Array, present: Array, records: Array) -> None:
        """Features whose list is none that the column takes."""
        for kind in np.unique(kinds[present]).tolist():
            chosen = records[present & (kinds == kind)]
            if kind not in LIST_NAMES:
                self.problems.unusual[chosen] = True
                continue
            wanted = " or ".join(LIST_NAMES[k] for k in self.column.lists)
            found = f"feature '{self.column.name}' is a {LIST_NAMES[kind]}"
            self.problems.mark(chosen, f"{found}, and its column, {self.column.type}, is read from {wanted}")

    def _of_each(self, values: pa.Array, bounds: Array, records: Array, ndim: int) -> pa.Array:
        """Arrays, or the single values of lists; null for a list of none."""
        if ndim:
            return _shaped(bounds, values, self.column, ndim)
        counts = np.diff(bounds)
        if len(values) == len(counts) and (not len(counts) or counts.max() == 1):
            return values
        several = counts > 1
        if several.any():
            found = f"feature '{self.column.name}' has {counts[several][0]} values"
            self.problems.mark(records[several], f"{found}, and its column, {self.column.type}, takes one")
        return values.take(pa.array(np.where(counts > 0, bounds[:-1], 0), mask=counts == 0))

    def _items(self, kind: int, start: Array, end: Array, records: Array, ndim: int) -> tuple[pa.Array, Array]:
        """The values of lists of one kind, one after another, as the column has them, and where each list begins."""
        if kind == BYTES:
            return self._bytes(start, end, records)
        begin, finish, wrong = only_part(self.buffer, start, end, _ITEM)
        self.problems.unusual[records[wrong]] = True
        read = self._floats if kind == FLOAT else self._integers
        values, bounds = read(begin, finish, records, ndim)
        return self._cast(pa.array(values), bounds, records), bounds

    def _floats(self, begin: Array, end: Array, records: Array, ndim: int) -> tuple[Array, Array]:
        size = end - begin
        if not ndim and len(size) and size.min() == size.max() == 4:
            return floats_at(self.buffer, begin), np.arange(len(size) + 1)
        uneven = size % 4 != 0
        if uneven.any():
            self.problems.unusual[records[uneven]] = True
            end = np.where(uneven, begin, end)
        data, offsets = gather(self.buffer, begin, end)
        return data.view("<f4"), offsets // 4

    def _integers(self, begin: Array, end: Array, records: Array, ndim: int) -> tuple[Array, Array]:
        if not ndim:
            values, wrong = single_integers(self.buffer, begin, end)
            if not wrong.any():
                return values, np.arange(len(begin) + 1)
        data, offsets = gather(self.buffer, begin, end)
        values, bounds, wrong = integers(data, offsets)
        self.problems.unusual[records[wrong]] = True
        return values, bounds

    def _bytes(self, start: Array, end: Array, records: Array) -> tuple[pa.Array, Array]:
        owner, begin, finish, wrong = split(self.buffer, start, end, _ITEM)
        self.problems.unusual[records[wrong]] = True
        bounds = _bounds(np.bincount(owner, minlength=len(start)))
        data, offsets = gather(self.buffer, begin, finish)
        if pa.types.is_float64(self.column.element):
            uneven = (finish - begin) % 8 != 0
            if uneven.any():
                found = f"feature '{self.column.name}' has bytes that are no multiple of eight"
                self.problems.mark(records[owner[uneven]], f"{found}, and its column is {self.column.type}")
                return pa.nulls(0, pa.float64()), np.zeros(len(start) + 1, np.int64)
            return pa.array(data.view("<f8")), offsets[bounds] // 8
        return self._cast(_binary(data, offsets), bounds, records), bounds

    def _cast(self, values: pa.Array, bounds: Array, records: Array) -> pa.Array:
        """Values as the column has them; what it cannot have is null, and told."""
        if values.type == self.column.element:
            return values
        try:
            return cast(values, self.column.element)
        except pa.ArrowInvalid:
            pass
        fits = np.ones(len(values), bool)
        for i in range(len(values)):  # seldom, and the record is lost
            try:
                cast(values.slice(i, 1), self.column.element)
            except pa.ArrowInvalid:
                fits[i] = False
        lists = np.searchsorted(bounds, np.flatnonzero(~fits), side="right") - 1
        reason = f"feature '{self.column.name}' has a value that its column, {self.column.type}, cannot hold"
        if pa.types.is_string(self.column.element) or pa.types.is_large_string(self.column.element):
            reason += ": it is no UTF-8. Read it as binary (option binaryFeatures, or a schema)"
        self.problems.mark(records[lists], reason)
        return cast(values.take(pa.array(np.arange(len(values)), mask=~fits)), self.column.element)


def cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values as another type; raises ``ArrowInvalid`` if one is out of its range, or no UTF-8."""
    if pa.types.is_floating(kind):
        return pc.cast(values, kind, safe=False)  # whole numbers are rounded
    if pa.types.is_decimal(kind) and not pa.types.is_floating(values.type):
        return pc.cast(pc.cast(values, pa.string()), kind)
    return pc.cast(values, kind)


def type_at(column: Column, ndim: int) -> pa.DataType:
    """The type of what has `ndim` levels of arrays in a column."""
    kind = column.type
    for _ in range(column.ndim - ndim):
        kind = kind.value_type
    return kind


def _bounds(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)])


def _binary(data: Array, offsets: Array) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _shaped(bounds: Array, values: pa.Array, column: Column, ndim: int) -> pa.Array:
    """Values as arrays of the type that a column has at a level, or as vectors."""
    kind = type_at(column, ndim)
    if column.is_vector:
        lists = pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values)
        dense = pa.array(np.ones(len(lists), np.int8))
        nothing = [pa.nulls(len(lists), kind.field(i).type) for i in (1, 2)]
        return pa.StructArray.from_arrays([dense, *nothing, lists.cast(kind.field(3).type)], fields=list(kind))
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(bounds), values, type=kind)
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values, type=kind)


def _placed(array: pa.Array, rows: Array, count: int) -> pa.Array:
    """Values in `count` rows, at some of them; null in the others."""
    if len(rows) == count and (count < 2 or (rows[1:] > rows[:-1]).all()):
        return array
    places = np.full(count, -1)
    places[rows] = np.arange(len(rows))
    return array.take(pa.array(places, mask=places < 0))
