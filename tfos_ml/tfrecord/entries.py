"""Where the features of serialized Examples and SequenceExamples lie, by name, in all records of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tfos_ml.tfrecord.feature_types import SEQUENCE
from tfos_ml.tfrecord.wire import Array, Buffer, equals, lengths_at, only_part, tag

_ITEM = 1  # number of the field of Example, Features and FeatureLists that has what is in them
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


def named_spans(
    buffer: Buffer,
    start: Array,
    end: Array,
    record_type: str,
    in_context: set[str],
    in_lists: set[str],
    problems: Problems,
) -> tuple[dict[str, Spans], dict[str, Spans]]:
    """The features and the feature lists of messages, by name."""
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


def _entries(buffer: Buffer, maps: Spans, names: set[str], problems: Problems) -> dict[str, Spans]:
    """The values of the entries with given names of the maps that records have."""
    by_name: dict[str, list[Spans]] = {}
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
            elif name in names:
                by_name.setdefault(name, []).append(Spans(active[chosen], value_begin[chosen], finish[chosen]))
        position, more = finish, finish < ends
    return {name: _merged(parts, problems) for name, parts in by_name.items()}


def _by_key(buffer: Buffer, key: Array, length: Array) -> list[tuple[str | None, Array | slice]]:
    """The keys at positions, and which of them are the same; None for one that is no UTF-8."""
    groups: list[tuple[str | None, Array | slice]] = []
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
        groups.append((name, rest[same]))
        rest = rest[~same]
    return groups


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
