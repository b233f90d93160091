"""Which files hold the rows of a DataFrame, in Spark's own order; what nodes that read them are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tfos_ml.data.row_condition import Condition, columns_of
from tfos_ml.data.validation_draw import ValidationDraw


@dataclass(frozen=True)
class PlannedFile:
    """A Parquet file as it was when the plan was made."""

    uri: str = field(repr=False)  # absolute path or URI, as ``filesystems.open_uri`` takes it; may hold a password
    size: int  # bytes
    mtime_ns: int | None  # None where the filesystem does not tell
    constants: tuple[Any, ...] = ()  # values that its directories tell, by the plan's ``constants``


@dataclass(frozen=True)
class FilePiece:
    """Consecutive rows of a file that are in one partition of Spark's scan."""

    partition: int
    file: int  # its number in the plan
    row_groups: tuple[int, ...]
    rows: int  # before any are left out


@dataclass(frozen=True)
class FilePlan:
    """All rows of a scan: its pieces in the order of partitions, and of rows within a partition."""

    files: tuple[PlannedFile, ...]
    pieces: tuple[FilePiece, ...]
    columns: tuple[str, ...]  # by position of the columns that are fed
    validation: str | ValidationDraw | None = None  # a boolean column, or a draw: rows to validate on
    condition: Condition | None = None  # of rows that are kept; the others have no position in their partition
    constants: tuple[tuple[str, str], ...] = ()  # columns that directories tell, and their Arrow types by name
    row_ids: str | None = None  # a column that holds the ids of rows; None: they follow from partitions and positions

    @property
    def read_columns(self) -> list[str]:
        """All columns that are needed of the files, each once."""
        marks = [self.validation] if isinstance(self.validation, str) else []
        tested = [] if self.condition is None else sorted(columns_of(self.condition))
        told = {name for name, _ in self.constants}
        ids = [] if self.row_ids is None else [self.row_ids]
        return [name for name in dict.fromkeys([*self.columns, *marks, *tested, *ids]) if name not in told]

    @property
    def rows(self) -> int:
        """Number of all rows, before any are left out."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def row_groups(self) -> int:
        """Number of all row groups."""
        return sum(len(piece.row_groups) for piece in self.pieces)
