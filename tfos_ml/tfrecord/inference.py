"""Which columns records have, from a sample of all files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.errors import ColumnTypeError, CorruptRecordError, EmptyDataError
from tfos_ml.tfrecord.columns import BYTES, FLOAT, INT64, LIST_NAMES, Column
from tfos_ml.tfrecord.decoding import Decoder, usual
from tfos_ml.tfrecord.entries import Problems, Spans, named_spans
from tfos_ml.tfrecord.files import DataFile
from tfos_ml.tfrecord.framing import damaged
from tfos_ml.tfrecord.options import FAILFAST, Options
from tfos_ml.tfrecord.reading import chunks_of
from tfos_ml.tfrecord.wire import Array, Buffer

_THREADS, _SAMPLE_BYTES = 16, 1 << 20
_VALUES = {BYTES: pa.binary(), FLOAT: pa.float32(), INT64: pa.int64()}


@dataclass
class Seen:
    """What a feature has been in the records that were looked at."""

    kinds: dict[int, str] = field(default_factory=dict)  # its lists, as tags, and a file with each
    is_array: bool = False  # whether it had no value, or several, somewhere
    in_lists: bool = False  # whether it was among the feature lists of a SequenceExample
    is_text: bool = True  # whether its bytes are UTF-8

    def update(self, other: Seen) -> None:
        """Take in what was seen elsewhere."""
        self.kinds = {**other.kinds, **self.kinds}
        self.is_array |= other.is_array
        self.in_lists |= other.in_lists
        self.is_text &= other.is_text


def infer(files: Sequence[DataFile], options: Options) -> pa.Schema:
    """The columns of files, by name, as Arrow types; raises ``EmptyDataError`` if there is no record.

    A feature of integers in some records and of floats in others is double.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        samples = list(pool.map(lambda file: _seen_in(file, options), files))
    found: dict[str, Seen] = {}
    for _, sample in samples:
        for name, seen in sample.items():
            found.setdefault(name, Seen()).update(seen)
    if not any(count for count, _ in samples):
        shown = files[0].shown if files else "the directory"
        raise EmptyDataError(
            f"There are no TFRecords in {len(files)} files ({shown}, ...), from which to tell the columns. Give a "
            "schema."
        )
    return schema_of(found, options.binary_features)


def _seen_in(file: DataFile, options: Options) -> tuple[int, dict[str, Seen]]:
    """The number of records in a sample of a file, and what their features are."""
    for chunk in chunks_of(file, options.codec, _SAMPLE_BYTES):
        good = np.flatnonzero(~damaged(chunk.data, chunk.frames))[: options.sample_records]
        if len(good):
            start, end = chunk.frames.start[good], chunk.frames.end[good]
            return len(good), seen_in(chunk.data, start, end, options.record_type, file.shown)
        if chunk.is_torn and options.mode == FAILFAST:
            at = chunk.offset + chunk.frames.consumed
            raise CorruptRecordError(
                f"{file.shown} has no record that is whole; it may be none of TFRecords, or have a "
                f"codec that is not known.",
                file.shown,
                at,
            )
    return 0, {}


def seen_in(data: Array, start: Array, end: Array, record_type: str, file: str) -> dict[str, Seen]:
    """What the features of serialised messages in padded bytes are."""
    found, problems = _look(data, start, end, record_type, file)
    if problems.unusual.any():
        data, start, end, _ = usual(data, start, end, problems.unusual, record_type)
        found, _ = _look(data, start, end, record_type, file)
    return found


def _look(data: Array, start: Array, end: Array, record_type: str, file: str) -> tuple[dict[str, Seen], Problems]:
    problems = Problems(np.zeros(len(start), bool))
    buffer = Buffer.of(data)
    features, lists = named_spans(buffer, start, end, record_type, None, None, problems)
    found = {name: Seen() for name in [*features, *lists]}
    for name, spans in features.items():
        for kind, values in _lists_by_kind(buffer, name, spans, 1, problems):
            found[name].update(_seen(kind, values, file))
    for name, spans in lists.items():
        for kind, values in _lists_by_kind(buffer, name, spans, 2, problems):
            found[name].update(_seen(kind, values.flatten(), file))
        found[name].in_lists = True
    return found, problems


def _lists_by_kind(
    buffer: Buffer, name: str, spans: Spans, ndim: int, problems: Problems
) -> Iterable[tuple[int, pa.Array]]:
    """The values of a feature, read as each kind of list; records of another kind have none."""
    for kind, item in _VALUES.items():
        type_ = item
        for _ in range(ndim):
            type_ = pa.list_(type_)
        apart = Problems(problems.unusual)
        decoder = Decoder(buffer, Column(name, type_, item, ndim, only=kind), apart)
        array = (
            decoder.features(spans, len(problems.unusual))
            if ndim == 1
            else decoder.feature_lists(spans, len(problems.unusual))
        )
        if (array.flatten() if ndim == 2 else array).drop_null():
            yield kind, array


def _seen(kind: int, lists: pa.Array, file: str) -> Seen:
    lengths = pc.unique(pc.list_value_length(lists.drop_null())).to_pylist()
    is_text = True
    if kind == BYTES:
        try:
            lists.flatten().cast(pa.string())
        except pa.ArrowInvalid:
            is_text = False
    return Seen({kind: file}, lengths != [1], is_text=is_text)


def schema_of(found: dict[str, Seen], binary_features: Collection[str]) -> pa.Schema:
    """Arrow types of features; raises ``ColumnTypeError`` if one is bytes here and numbers there."""
    fields = []
    for name, seen in sorted(found.items()):
        kind: pa.DataType = _type(name, seen, name in binary_features)
        kind = pa.list_(kind) if seen.is_array else kind
        fields.append((name, pa.list_(kind) if seen.in_lists else kind))
    return pa.schema(fields)


def _type(name: str, seen: Seen, is_binary: bool) -> pa.DataType:
    kinds = set(seen.kinds)
    if BYTES in kinds and len(kinds) > 1:
        where = " and ".join(f"a {LIST_NAMES[kind]} in {file}" for kind, file in seen.kinds.items())
        raise ColumnTypeError(
            f"Feature '{name}' is {where}, which are no one column. Read the files apart, or give a schema without it."
        )
    if kinds == {INT64}:
        return pa.int64()
    if kinds:
        return pa.float32() if kinds == {FLOAT} else pa.float64() if FLOAT in kinds else _bytes(seen, is_binary)
    return _bytes(seen, is_binary)


def _bytes(seen: Seen, is_binary: bool) -> pa.DataType:
    return pa.binary() if is_binary or not seen.is_text else pa.string()
