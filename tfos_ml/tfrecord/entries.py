"""Finds features by name in serialized Examples and SequenceExamples, in all records of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tfos_ml.tfrecord.feature_types import SEQUENCE
from tfos_ml.tfrecord.wire import Array, Buffer, equals, field_at, select


@dataclass
class Problems:
    """Problems of records, by number of the record. The first reason for a record is kept."""

    unusual: Array  # a mask of the records to be rewritten with the protobuf library
    reasons: dict[int, str] = field(default_factory=dict)

    def mark(self, rows: Array, reason: str) -> None:
        """Add a reason why some records cannot be read."""
        for row in rows.tolist():
            self.reasons.setdefault(row, reason)


@dataclass(frozen=True)
class Spans:
    """The position of one part of a message in those records that have the part."""

    rows: Array  # numbers of the records, ascending
    start: Array
    end: Array


def named_spans(
    buffer: Buffer, messages: Spans, record_type: str, in_context: set[str], in_lists: set[str], problems: Problems
) -> tuple[dict[str, Spans], dict[str, Spans]]:
    """The features and the feature lists of messages, by name."""
    position = messages.start
    maps = []
    for number in (1, 2) if record_type == SEQUENCE else (1,):
        begin, position, is_there = field_at(buffer, position, messages.end, number)
        maps.append(Spans(*select(is_there, messages.rows, begin, position)))
    problems.unusual |= position != messages.end
    features = _entries(buffer, maps[0], in_context, problems)
    return features, _entries(buffer, maps[1], in_lists, problems) if len(maps) > 1 else {}


def _entries(buffer: Buffer, maps: Spans, names: set[str], problems: Problems) -> dict[str, Spans]:
    """The values with given names in maps of some records."""
    by_name: dict[str, list[Spans]] = {}
    active, position, ends = select(maps.start < maps.end, maps.rows, maps.start, maps.end)
    while len(active):
        begin, finish, is_entry = field_at(buffer, position, ends, 1)
        key, key_end, has_key = field_at(buffer, begin, finish, 1)
        value, value_end, has_value = field_at(buffer, key_end, finish, 2)
        fits = is_entry & has_key & has_value & (value_end == finish)
        problems.unusual[active[~fits]] = True
        active, key, key_end, value, finish, ends = select(fits, active, key, key_end, value, finish, ends)
        for name, chosen in _by_key(buffer, key, key_end - key):
            if name is None:
                problems.unusual[active[chosen]] = True
            elif name in names:
                by_name.setdefault(name, []).append(Spans(active[chosen], value[chosen], finish[chosen]))
        active, position, ends = select(finish < ends, active, finish, ends)
    return {name: _merged(parts, problems) for name, parts in by_name.items()}


def _by_key(buffer: Buffer, key: Array, length: Array) -> list[tuple[str | None, Array | slice]]:
    """Group map keys: each distinct key, None if it is not UTF-8, with the indices at which it is found."""
    groups: list[tuple[str | None, Array | slice]] = []
    rest: Array | slice = slice(None)  # all: the usual and fastest case
    while len(some := key[rest]):
        expected = buffer.data[some[0] : some[0] + length[rest][0]].tobytes()
        same = (length[rest] == len(expected)) & equals(buffer, some, expected)
        try:
            name = expected.decode()
        except UnicodeDecodeError:
            name = None
        if isinstance(rest, slice):
            if same.all():
                return [(name, rest)]
            rest = np.arange(len(key))
        groups.append((name, rest[same]))
        rest = rest[~same]
    return groups


def _merged(parts: list[Spans], problems: Problems) -> Spans:
    """Merge spans in the order of records; a record with several is marked as unusual."""
    if len(parts) == 1:
        return parts[0]
    rows, start, end = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "start", "end"))
    order = np.argsort(rows, kind="stable")
    is_again = np.append(False, np.diff(rows[order]) == 0)
    problems.unusual[rows[order[is_again]]] = True
    order = order[~is_again]
    return Spans(rows[order], start[order], end[order])
