"""Which columns records have, from a sample of all files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tfos_ml.errors import ColumnTypeError, CorruptRecordError, EmptyDataError
from tfos_ml.tfrecord.feature_types import EXAMPLE
from tfos_ml.tfrecord.files import DataFile
from tfos_ml.tfrecord.framing import damaged
from tfos_ml.tfrecord.options import FAILFAST, Options
from tfos_ml.tfrecord.protobuf import LISTS, parsed
from tfos_ml.tfrecord.reading import chunks_of

_THREADS, _SAMPLE_BYTES = 16, 1 << 20
_BYTES, _FLOATS, _INTEGERS = LISTS


@dataclass
class Seen:
    """What a feature has been in the records that were looked at."""

    kinds: dict[str, str] = field(default_factory=dict)  # its lists, and a file with each
    is_array: bool = False  # whether it had no value, or several, somewhere
    in_lists: bool = False  # whether it was among the feature lists of a SequenceExample
    is_text: bool = True  # whether its bytes are UTF-8

    def add(self, feature: Any, file: str) -> None:
        """Take in a feature of a message."""
        list_name = feature.WhichOneof("kind")
        if list_name is None:
            return
        values = getattr(feature, list_name).value
        self.kinds.setdefault(list_name, file)
        self.is_array |= len(values) != 1
        if list_name == _BYTES and self.is_text:
            self.is_text = all(map(_is_text, values))

    def update(self, other: Seen) -> None:
        """Take in what was seen elsewhere."""
        self.kinds = {**other.kinds, **self.kinds}
        self.is_array |= other.is_array
        self.in_lists |= other.in_lists
        self.is_text &= other.is_text


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def infer(files: Sequence[DataFile], options: Options) -> pa.Schema:
    """The columns of files, by name, as Arrow types; raises ``EmptyDataError`` if there is no record.

    A feature of integers in some records and of floats in others is double.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        samples = list(pool.map(lambda file: _seen_in(file, options), files))
    columns: dict[str, Seen] = {}
    for _, sample in samples:
        for name, seen in sample.items():
            columns.setdefault(name, Seen()).update(seen)
    if not any(count for count, _ in samples):
        first_file = files[0].shown if files else "the directory"
        raise EmptyDataError(
            f"There are no TFRecords in {len(files)} files ({first_file}, ...), from which to tell the columns. Give a "
            "schema."
        )
    return schema_of(columns, options.binary_features)


def _seen_in(file: DataFile, options: Options) -> tuple[int, dict[str, Seen]]:
    """The number of records in a sample of a file, and what their features are."""
    for chunk in chunks_of(file, options.codec, _SAMPLE_BYTES):
        good = np.flatnonzero(~damaged(chunk.data, chunk.frames))[: options.sample_records]
        if len(good):
            spans = zip(chunk.frames.start[good].tolist(), chunk.frames.end[good].tolist(), strict=True)
            records = [chunk.data[start:end].tobytes() for start, end in spans]
            return len(good), seen_in(records, options.record_type, file.shown)
        if chunk.is_torn and options.mode == FAILFAST:
            at = chunk.offset + chunk.frames.consumed
            raise CorruptRecordError(
                f"{file.shown} has no record that is whole; it may be none of TFRecords, or have a "
                f"codec that is not known.",
                file.shown,
                at,
            )
    return 0, {}


def seen_in(records: Iterable[bytes], record_type: str, file: str) -> dict[str, Seen]:
    """What the features of serialized messages are; those that are none are passed over."""
    columns: dict[str, Seen] = {}
    for message in (parsed(record, record_type) for record in records):
        if message is None:
            continue
        context = message.features if record_type == EXAMPLE else message.context
        for name, feature in context.feature.items():
            columns.setdefault(name, Seen()).add(feature, file)
        lists = () if record_type == EXAMPLE else message.feature_lists.feature_list.items()
        for name, items in lists:
            seen = columns.setdefault(name, Seen())
            seen.in_lists = True
            for feature in items.feature:
                seen.add(feature, file)
    return columns


def schema_of(columns: dict[str, Seen], binary_features: Collection[str]) -> pa.Schema:
    """Arrow types of features; raises ``ColumnTypeError`` if one is bytes here and numbers there."""
    fields = []
    for name, seen in sorted(columns.items()):
        arrow_type: pa.DataType = _type(name, seen, name in binary_features)
        arrow_type = pa.list_(arrow_type) if seen.is_array else arrow_type
        fields.append((name, pa.list_(arrow_type) if seen.in_lists else arrow_type))
    return pa.schema(fields)


def _type(name: str, seen: Seen, is_binary: bool) -> pa.DataType:
    kinds = set(seen.kinds)
    if _BYTES in kinds and len(kinds) > 1:
        where = " and ".join(f"a {LISTS[kind]} in {file}" for kind, file in seen.kinds.items())
        raise ColumnTypeError(
            f"Feature '{name}' is {where}, which cannot be one column. Read the files apart, or give a schema without "
            "it."
        )
    if kinds == {_INTEGERS}:
        return pa.int64()
    if _FLOATS in kinds:
        return pa.float32() if len(kinds) == 1 else pa.float64()
    return pa.binary() if is_binary or not seen.is_text else pa.string()
