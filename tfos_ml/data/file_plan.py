"""Which files hold the rows of a DataFrame, in Spark's own order; what nodes that read them are told."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tfos_ml.data.row_condition import Condition, columns_of
from tfos_ml.data.validation_draw import ValidationDraw

PARQUET, BINARY_FILE, TFRECORD, CSV, JSON = "parquet", "binaryFile", "tfrecord", "csv", "json"
"""Formats of files that nodes read."""
TEXTS = (CSV, JSON)
CONTENT_COLUMN = "content"
"""Of ``binaryFile``: what is in the file; all other columns of a row are told beforehand."""
UNIT_BYTES = 32 << 20
"""Of one unit, about, unless a piece has more."""
_UNITS_EACH = 4  # for each reader, where there is so little to read that units of that size would be fewer


@dataclass(frozen=True)
class PlannedFile:
    """A file as it was when the plan was made."""

    uri: str = field(repr=False)  # absolute path or URI, as ``filesystems.open_uri`` takes it; may hold a password
    size: int  # bytes
    mtime_ns: int | None  # None where the filesystem does not tell
    constants: tuple[Any, ...] = ()  # values that are told of its rows, by the plan's ``constants``
    directories: tuple[tuple[str, str | None], ...] = ()  # of TFRecords: columns and values that its directories tell
    compression: str | None = None  # of texts, as pyarrow names it


@dataclass(frozen=True)
class FilePiece:
    """Consecutive rows of a file that are in one partition of Spark's scan."""

    partition: int
    file: int  # its number in the plan
    row_groups: tuple[int, ...]  # of Parquet
    rows: int | None  # before any are left out; None if only a reader can tell
    size: int = 0  # in bytes, about, by which the work of reading is dealt; exact for texts
    start: int = 0  # of texts: the first byte of the split
    hosts: tuple[str, ...] = ()  # on whose disks it lies, where Spark knows


@dataclass(frozen=True)
class FileUnit:
    """Consecutive pieces of a partition that one node reads."""

    number: int
    partition: int
    first: int  # position of its first row in the partition
    pieces: tuple[FilePiece, ...]

    @property
    def size(self) -> int:
        """In bytes, about."""
        return sum(piece.size for piece in self.pieces)

    @property
    def hosts(self) -> frozenset[str]:
        """On whose disks all of it lies, where Spark knows."""
        return frozenset.intersection(*(frozenset(piece.hosts) for piece in self.pieces))


@dataclass(frozen=True)
class FilePlan:
    """All rows of a scan: its pieces in the order of partitions, and of rows within a partition."""

    files: tuple[PlannedFile, ...]
    pieces: tuple[FilePiece, ...]
    columns: tuple[str, ...]  # by position of the columns that are fed
    validation: str | ValidationDraw | None = None  # a boolean column, or a draw: rows to validate on
    condition: Condition | None = None  # of rows that are kept; the others have no position in their partition
    constants: tuple[tuple[str, str], ...] = ()  # columns that are told beforehand, and their Arrow types by name
    row_ids: str | None = None  # a column that holds the ids of rows; None: they follow from partitions and positions
    format: str = PARQUET
    decoding: Any = field(default=None, repr=False)  # a ``ReadPlan`` without files of TFRecords, a ``TextFormat``

    @property
    def read_columns(self) -> list[str]:
        """All columns that are needed of the files, each once."""
        marks = [self.validation] if isinstance(self.validation, str) else []
        tested = [] if self.condition is None else sorted(columns_of(self.condition))
        told = {name for name, _ in self.constants}
        ids = [] if self.row_ids is None else [self.row_ids]
        return [name for name in dict.fromkeys([*self.columns, *marks, *tested, *ids]) if name not in told]

    @property
    def rows(self) -> int | None:
        """Number of all rows, before any are left out; None if only readers can tell."""
        known = [piece.rows for piece in self.pieces if piece.rows is not None]
        return sum(known) if len(known) == len(self.pieces) else None

    @property
    def row_groups(self) -> int:
        """Number of all row groups."""
        return sum(len(piece.row_groups) for piece in self.pieces)

    def units(self, readers: int) -> list[FileUnit]:
        """All pieces in their order, in units that so many nodes can share.

        Where a filter, or the format, leaves it open at which row of a partition a piece begins, a unit is a partition.
        """
        total = sum(piece.size for piece in self.pieces)
        is_open = self.condition is not None or self.rows is None
        least = total + 1 if is_open else max(1, min(UNIT_BYTES, total // (_UNITS_EACH * readers)))
        found: list[FileUnit] = []
        for partition, pieces in groupby(self.pieces, lambda piece: piece.partition):
            position = 0
            for together in _gathered(pieces, least):
                found.append(FileUnit(len(found), partition, position, together))
                position += sum(piece.rows or 0 for piece in together)
        return found


def _gathered(pieces: Iterator[FilePiece], least: int) -> Iterator[tuple[FilePiece, ...]]:
    """The same pieces in groups of at least so many bytes, but for the last."""
    waiting: list[FilePiece] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += piece.size
        if size >= least:
            yield tuple(waiting)
            waiting.clear()
            size = 0
    if waiting:
        yield tuple(waiting)


def dealt_units(units: Sequence[FileUnit], readers: Sequence[int], hosts: Mapping[int, str] | None = None) -> list[int]:
    """The node that reads each unit: one of its hosts, which `hosts` has by rank, else the one with the least to read.

    So early units are read by different nodes, and each node reads about as much as the others: a node on the host of a
    unit has at most that unit more to read than another.

    >>> pieces = [FilePiece(0, 0, (i,), 10, size) for i, size in enumerate([3, 1, 1, 2])]
    >>> dealt_units([FileUnit(i, 0, 10 * i, (piece,)) for i, piece in enumerate(pieces)], [4, 5])
    [4, 5, 5, 5]
    """
    loads = [0] * len(readers)
    by_load = [(0, place) for place in range(len(readers))]
    on_host: dict[str, list[int]] = {}
    for place, rank in enumerate(readers):
        on_host.setdefault((hosts or {}).get(rank, ""), []).append(place)
    owners = []
    for unit in units:
        while by_load[0][0] != loads[by_load[0][1]]:
            heapq.heappop(by_load)  # of before it was given a unit
        least = by_load[0][1]
        near = [place for host in unit.hosts for place in on_host.get(host, ())]
        place = min(near, key=lambda place: (loads[place], place), default=least)
        if loads[place] > loads[least] + unit.size:
            place = least
        loads[place] += max(1, unit.size)
        heapq.heappush(by_load, (loads[place], place))
        owners.append(readers[place])
    return owners
