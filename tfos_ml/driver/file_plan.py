"""The plan by which nodes read Parquet files themselves: Spark's splits, and the row groups of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact
from tfos_ml.data.file_plan import FilePiece, FilePlan, PlannedFile
from tfos_ml.data.parquet_types import same_values, spark_arrow_type
from tfos_ml.data.row_condition import Condition, columns_of
from tfos_ml.data.validation_draw import ValidationDraw
from tfos_ml.driver.file_filter import ARROW_TYPES, row_condition
from tfos_ml.driver.file_scan import FileScan, FileSplit, NotDirectError, file_scan, splits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_FILES = 10_000
"""Whose footers the driver reads."""
_THREADS = 16


@dataclass(frozen=True)
class _Kind:
    spark: str
    arrow: pa.DataType | None  # None: any


@dataclass(frozen=True)
class _Footer:
    file: PlannedFile
    types: pa.Schema
    row_groups: list[tuple[int, int, int]]  # of each: the byte by which it belongs to a split, its rows, its bytes


def make_plan(
    df: DataFrame,
    columns: Sequence[str],
    validation: str | ValidationDraw | None,
    numbered: Callable[[], DataFrame],
) -> FilePlan:
    """Plan how nodes read some columns of a DataFrame from its files.

    `validation` says which rows are for validation: a boolean column, or a draw. `numbered` makes the DataFrame that
    Spark would feed. Raises ``NotDirectError`` if rows might not be the same, or not in the same order, as Spark has
    them.
    """
    scan = file_scan(df)
    wanted = [*columns, *([validation] if isinstance(validation, str) else [])]
    kinds = {scan.columns[name]: _kind(df, name, scan) for name in wanted if name in scan.columns}
    fields = [name for name in wanted if name not in scan.columns]
    if fields:
        raise NotDirectError(f"'{fields[0]}' is a field of a struct")
    condition = row_condition(scan)
    kinds |= _tested_kinds(scan, condition, kinds)
    constants = [name for name in kinds if name in scan.partitions]
    found = splits(numbered(), [(list(scan.partitions).index(name), scan.partitions[name]) for name in constants])
    footers = _footers(found)
    for footer in footers.values():
        _check_types(footer, {name: kind for name, kind in kinds.items() if name not in scan.partitions})
    numbers = {uri: number for number, uri in enumerate(footers)}
    pieces = (piece for split in found for piece in _pieces(split, footers[split.uri], numbers[split.uri]))
    return FilePlan(
        tuple(footer.file for footer in footers.values()),
        tuple(piece for piece in pieces if piece.rows),
        tuple(scan.columns[name] for name in columns),
        scan.columns[validation] if isinstance(validation, str) else validation,
        condition,
        tuple((name, ARROW_TYPES[scan.partitions[name]]) for name in constants),
    )


def _kind(df: DataFrame, name: str, scan: FileScan) -> _Kind:
    """The type of a column of the DataFrame to Spark and to Arrow."""
    stored = scan.columns[name]
    if "." in stored:
        raise NotDirectError(f"the name of column '{stored}' has a dot in it")
    (found,) = [field.dataType for field in df.schema.fields if field.name == name]
    kind = spark_arrow_type(found)
    if kind is None or (stored in scan.partitions and scan.partitions[stored] not in ARROW_TYPES):
        raise NotDirectError(f"Spark converts column '{name}' of type {found.simpleString()} as it reads it")
    return _Kind(found.simpleString(), kind)


def _tested_kinds(scan: FileScan, condition: Condition | None, known: Mapping[str, _Kind]) -> dict[str, _Kind]:
    """The types of columns in a filter that are not `known`; of those tested for null alone any type will do."""
    types = dict(scan.attributes.values())
    found = {}
    for name in columns_of(condition) - set(known) if condition is not None else ():
        alias = ARROW_TYPES.get(types[name])
        if "." in name or (alias is None and name in scan.partitions):
            raise NotDirectError(f"the DataFrame is filtered by column '{name}' of type {types[name]}")
        found[name] = _Kind(types[name], pa.type_for_alias(alias) if alias else None)
    return found


def _footers(found: Sequence[FileSplit]) -> dict[str, _Footer]:
    listed = {split.uri: split for split in found}
    if len(listed) > MOST_FILES:
        raise NotDirectError(f"there are {len(listed):,} files, more than {MOST_FILES:,}")
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="footers") as pool:
        return dict(zip(listed, pool.map(_footer, listed.values()), strict=True))


def _footer(split: FileSplit) -> _Footer:
    def read(filesystem: fs.FileSystem, path: str) -> _Footer:
        info = filesystem.get_file_info(path)
        with filesystem.open_input_file(path) as source:
            parquet = pq.ParquetFile(source)
            groups = [parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups)]
            places = [(_middle(group), group.num_rows, group.total_byte_size) for group in groups]
            return _Footer(
                PlannedFile(split.uri, info.size, info.mtime_ns, split.constants), parquet.schema_arrow, places
            )

    try:
        footer = filesystems.request(split.uri, read)
    except (OSError, pa.ArrowException) as error:
        shown = redact(split.uri)
        raise NotDirectError(f"the driver cannot read the footer of {shown}: {redact(error)}") from None
    if footer.file.size != split.file_size or not _is_time(footer.file.mtime_ns, split.modified):
        raise NotDirectError(f"{redact(split.uri)} has changed since Spark listed the files; read the DataFrame anew")
    return footer


def _is_time(nanoseconds: int | None, milliseconds: int) -> bool:
    """Whether two times of one file are the same; some filesystems tell whole seconds, some none."""
    if nanoseconds is None:
        return True
    whole = nanoseconds % 10**9 == 0
    return nanoseconds // 10**9 == milliseconds // 1000 if whole else nanoseconds // 10**6 == milliseconds


def _middle(group: Any) -> int:
    """The byte of a file that decides to which split a row group belongs, as parquet-mr has it."""
    first = group.column(0)
    start = first.data_page_offset
    if first.has_dictionary_page and first.dictionary_page_offset < start:
        start = first.dictionary_page_offset
    size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
    middle: int = start + size // 2
    return middle


def _check_types(footer: _Footer, kinds: Mapping[str, _Kind]) -> None:
    for name, kind in kinds.items():
        places = [i for i, other in enumerate(footer.types.names) if other.lower() == name.lower()]
        shown = redact(footer.file.uri)
        if len(places) != 1 or footer.types.names[places[0]] != name:
            raise NotDirectError(f"{shown} has no column '{name}', or several of that name")
        found = footer.types.field(places[0]).type
        if kind.arrow is not None and not same_values(found, kind.arrow):
            raise NotDirectError(f"column '{name}' is {found} in {shown}, and {kind.spark} to Spark")


def _pieces(split: FileSplit, footer: _Footer, number: int) -> Iterator[FilePiece]:
    """The row groups of a split, each for itself: nodes share them."""
    end = split.start + split.length
    for group, (middle, rows, size) in enumerate(footer.row_groups):
        if split.start <= middle < end:
            yield FilePiece(split.partition, number, (group,), rows, size)
