"""The layout of a snapshot: rows that Spark writes to Parquet files once, and that nodes read in any number of fits.

The row at position *p* of source partition *s* is in bucket ``(s + p) mod buckets``. Spark would feed it to node
``(s + p) mod nodes``. So if the number of nodes divides the number of buckets, each node reads whole buckets, and gets
the rows that it would be fed.

Lists of numbers are stored as binary values (:mod:`tfos_ml.data.packed_lists`), so other programs cannot use the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tfos_ml.data.row_order import Int64s, unpack_counts
from tfos_ml.data.schema import IMAGE, ColumnSpec
from tfos_ml.data.validation_draw import ValidationDraw


@dataclass(frozen=True)
class StoredColumn:
    """A column of the DataFrame; fields as of :class:`~tfos_ml.data.schema.ColumnSpec`. Vectors are float64."""

    column: str
    dtype: str
    ndim: int
    kind: str

    @classmethod
    def of(cls, spec: ColumnSpec) -> StoredColumn:
        return cls(spec.column, "float64" if spec.is_vector else spec.dtype, spec.ndim, spec.kind)

    @property
    def is_packed(self) -> bool:
        """Whether it holds lists of numbers, which are stored as :mod:`tfos_ml.data.packed_lists` packs them."""
        return self.ndim > 0 and self.kind != IMAGE and self.dtype not in ("bool", "string", "binary")

    def __str__(self) -> str:
        return f"{self.column} ({'vector' if self.kind == 'vector' else self.dtype + '[]' * self.ndim})"


@dataclass(frozen=True)
class Snapshot:
    """The rows of a DataFrame in files: columns ``c0``, ``c1``... and row ids, by ascending id."""

    directory: str = field(repr=False)  # a URI that all nodes reach
    columns: tuple[StoredColumn, ...]  # stored as c0, c1...
    buckets: int
    counts: str  # rows by source partition, as ``pack_counts`` writes them
    files: dict[str, int] = field(repr=False)  # sizes by name, which Spark begins with the bucket's number

    @property
    def rows(self) -> int:
        return int(unpack_counts(self.counts).sum())

    @property
    def bucket_rows(self) -> Int64s:
        """Rows by bucket, shape ``(buckets,)``."""
        rows = np.zeros(self.buckets, np.int64)
        for partition, count in enumerate(unpack_counts(self.counts).tolist()):
            rows += count // self.buckets
            rows[(partition + np.arange(count % self.buckets)) % self.buckets] += 1
        return rows

    def files_of(self, bucket: int) -> dict[str, int]:
        """Sizes of the files of one bucket by name; there may be none."""
        return {name: size for name, size in self.files.items() if int(name.split("-")[1]) == bucket}

    def position(self, column: StoredColumn) -> int | None:
        """Number of a stored column; None if it is not there, or of another type."""
        return self.columns.index(column) if column in self.columns else None


@dataclass(frozen=True)
class SnapshotRows:
    """The part of a snapshot that a fit reads."""

    snapshot: Snapshot
    columns: Sequence[int]  # positions of the columns to feed
    validation: int | ValidationDraw | None = None  # a boolean column's position, or a draw
