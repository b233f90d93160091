"""Parquet files of a scan: the row groups of each split, and whether their columns are as Spark has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tfos_ml.common.redact import redact
from tfos_ml.data.file_plan import FilePiece, PlannedFile
from tfos_ml.data.parquet_types import same_values
from tfos_ml.driver.file_listing import Listing, look_at_each
from tfos_ml.driver.file_scan import FileSplit, NotDirectError


@dataclass(frozen=True)
class Kind:
    """The type of a column, to Spark and to Arrow."""

    spark: str
    arrow: pa.DataType | None  # None: any


@dataclass(frozen=True)
class Footer:
    """What a file says of itself."""

    file: PlannedFile
    types: pa.Schema
    row_groups: list[tuple[int, int, int]]  # of each: the byte by which it belongs to a split, its rows, its bytes


def parquet_listing(found: Sequence[FileSplit], kinds: Mapping[str, Kind], told: Sequence[tuple[str, str]]) -> Listing:
    """The row groups of splits, whose columns must be of some kinds, but for those that are `told`."""
    footers = look_at_each(found, footer_of)
    names = {name for name, _ in told}
    for footer in footers.values():
        _check_types(footer, {name: kind for name, kind in kinds.items() if name not in names})
    numbers = {uri: number for number, uri in enumerate(footers)}
    pieces = (piece for split in found for piece in pieces_of(split, footers[split.uri], numbers[split.uri]))
    files = tuple(footer.file for footer in footers.values())
    return Listing(files, tuple(piece for piece in pieces if piece.rows), tuple(told))


def footer_of(filesystem: fs.FileSystem, path: str, split: FileSplit, info: fs.FileInfo) -> Footer:
    """The footer of a file."""
    with filesystem.open_input_file(path) as source:
        parquet = pq.ParquetFile(source)
        groups = [parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups)]
        places = [(_middle(group), group.num_rows, group.total_byte_size) for group in groups]
        return Footer(PlannedFile(split.uri, info.size, info.mtime_ns, split.constants), parquet.schema_arrow, places)


def _middle(group: Any) -> int:
    """The byte of a file that decides to which split a row group belongs, as parquet-mr has it."""
    first = group.column(0)
    start = first.data_page_offset
    if first.has_dictionary_page and first.dictionary_page_offset < start:
        start = first.dictionary_page_offset
    size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
    middle: int = start + size // 2
    return middle


def _check_types(footer: Footer, kinds: Mapping[str, Kind]) -> None:
    for name, kind in kinds.items():
        places = [i for i, other in enumerate(footer.types.names) if other.lower() == name.lower()]
        shown = redact(footer.file.uri)
        if len(places) != 1 or footer.types.names[places[0]] != name:
            raise NotDirectError(f"{shown} has no column '{name}', or several of that name")
        found = footer.types.field(places[0]).type
        if kind.arrow is not None and not same_values(found, kind.arrow):
            raise NotDirectError(f"column '{name}' is {found} in {shown}, and {kind.spark} to Spark")


def pieces_of(split: FileSplit, footer: Footer, number: int) -> Iterator[FilePiece]:
    """The row groups of a split of the file of some number, each for itself: nodes share them."""
    end = split.start + split.length
    for group, (middle, rows, size) in enumerate(footer.row_groups):
        if split.start <= middle < end:
            yield FilePiece(split.partition, number, (group,), rows, size, hosts=split.hosts)
