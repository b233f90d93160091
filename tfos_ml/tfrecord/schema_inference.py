"""Infers the columns of records from a sample of each file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tfos_ml.errors import ColumnTypeError, CorruptRecordError, EmptyDataError
from tfos_ml.tfrecord.feature_types import EXAMPLE
from tfos_ml.tfrecord.files import DataFile
from tfos_ml.tfrecord.framing import damaged
from tfos_ml.tfrecord.options import Options
from tfos_ml.tfrecord.protobuf import LISTS, parsed
from tfos_ml.tfrecord.reading import chunks

_SAMPLE_BYTES = 1 << 20
_BYTES, _FLOATS, _INTEGERS = LISTS


@dataclass
class SeenFeature:
    """What the records of the sample have for one feature."""

    lists: dict[str, str] = field(default_factory=dict)  # the types of list, each with a file that has it
    is_array: bool = False  # whether some record has no value or several
    in_lists: bool = False  # whether it is among the feature lists of a SequenceExample
    is_text: bool = True  # whether its bytes are UTF-8

    def add(self, feature: Any, file: str) -> None:
        """Add a feature of a message."""
        list_name = feature.WhichOneof("kind")
        if list_name is None:
            return
        values = getattr(feature, list_name).value
        self.lists.setdefault(list_name, file)
        self.is_array |= len(values) != 1
        if list_name == _BYTES and self.is_text:
            self.is_text = all(map(_is_text, values))


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def infer(files: Sequence[DataFile], options: Options) -> pa.Schema:
    """Infer the columns of files, sorted by name; raises ``EmptyDataError`` if there is no record.

    A feature of integers in some records and of floats in others is double.
    """
    columns: dict[str, SeenFeature] = {}
    has_records = False
    for file in files:
        records = _sample(file, options)
        add_records(columns, records, options.record_type, file.shown)
        has_records |= bool(records)
    if not has_records:
        first_file = files[0].shown if files else "the directory"
        raise EmptyDataError(
            f"The columns cannot be inferred, because there is no record in {len(files)} files ({first_file}, ...). "
            "Pass a schema."
        )
    return schema_of(columns, options.binary_features)


def _sample(file: DataFile, options: Options) -> list[bytes]:
    """The first records of a file that are not damaged."""
    for chunk in chunks(file, options.codec, _SAMPLE_BYTES):
        good = np.flatnonzero(~damaged(chunk.data, chunk.frames))[: options.sample_records]
        if len(good):
            spans = zip(chunk.frames.start[good].tolist(), chunk.frames.end[good].tolist(), strict=True)
            return [chunk.data[start:end].tobytes() for start, end in spans]
        if chunk.torn:
            raise CorruptRecordError(
                f"{file.shown} has no complete record. It may not be a TFRecord file, or its codec is not supported.",
                file.shown,
                chunk.offset + chunk.frames.consumed,
            )
    return []


def add_records(columns: dict[str, SeenFeature], records: Iterable[bytes], record_type: str, file: str) -> None:
    """Add the features of serialized messages to `columns`; skip records that cannot be parsed."""
    for message in (parsed(record, record_type) for record in records):
        if message is None:
            continue
        context = message.features if record_type == EXAMPLE else message.context
        for name, feature in context.feature.items():
            columns.setdefault(name, SeenFeature()).add(feature, file)
        lists = () if record_type == EXAMPLE else message.feature_lists.feature_list.items()
        for name, items in lists:
            seen = columns.setdefault(name, SeenFeature())
            seen.in_lists = True
            for feature in items.feature:
                seen.add(feature, file)


def schema_of(columns: dict[str, SeenFeature], binary_features: Collection[str]) -> pa.Schema:
    """Arrow types of features; raises ``ColumnTypeError`` if one is bytes in some records and numbers in others."""
    fields = []
    for name, seen in sorted(columns.items()):
        arrow_type: pa.DataType = _type(name, seen, name in binary_features)
        arrow_type = pa.list_(arrow_type) if seen.is_array else arrow_type
        fields.append((name, pa.list_(arrow_type) if seen.in_lists else arrow_type))
    return pa.schema(fields)


def _type(feature: str, seen: SeenFeature, is_binary: bool) -> pa.DataType:
    lists = set(seen.lists)
    if _BYTES in lists and len(lists) > 1:
        where = " and ".join(f"a {LISTS[name]} in {file}" for name, file in seen.lists.items())
        raise ColumnTypeError(
            f"Feature '{feature}' is {where}, which cannot be one column. Read the files separately, "
            "or pass a schema without it."
        )
    if lists == {_INTEGERS}:
        return pa.int64()
    if _FLOATS in lists:
        return pa.float32() if len(lists) == 1 else pa.float64()
    return pa.binary() if is_binary or not seen.is_text else pa.string()
