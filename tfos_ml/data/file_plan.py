"""Which files hold the rows of a DataFrame, in Spark's own order; what nodes that read them are told."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfos_ml.data.validation_draw import ValidationDraw


@dataclass(frozen=True)
class PlannedFile:
    """A Parquet file as it was when the plan was made."""

    uri: str = field(repr=False)  # absolute path or URI, as ``filesystems.open_uri`` takes it; may hold a password
    size: int  # bytes
    mtime_ns: int | None  # None where the filesystem does not tell


@dataclass(frozen=True)
class FilePiece:
    """Consecutive rows of a file that are in one partition of Spark's scan."""

    partition: int
    file: int  # its number in the plan
    row_groups: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class FilePlan:
    """All rows of a scan: its pieces in the order of partitions, and of rows within a partition."""

    files: tuple[PlannedFile, ...]
    pieces: tuple[FilePiece, ...]
    columns: tuple[str, ...]  # in the files, by position of the columns that are fed
    validation: str | ValidationDraw | None = None  # boolean column of the files, or a draw: rows to validate on

    @property
    def read_columns(self) -> list[str]:
        """All columns of the files that are needed, each once."""
        marks = [self.validation] if isinstance(self.validation, str) else []
        return list(dict.fromkeys([*self.columns, *marks]))

    @property
    def rows(self) -> int:
        """Number of all rows."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def row_groups(self) -> int:
        """Number of all row groups."""
        return sum(len(piece.row_groups) for piece in self.pieces)
