"""Reading the units of a plan: what readers of all formats share."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import fs

from tfos_ml import errors
from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact
from tfos_ml.data.file_plan import FilePlan, FileUnit, PlannedFile
from tfos_ml.data.order import PARTITION_SHIFT, Int64s
from tfos_ml.data.row_condition import Condition, columns_of, evaluate

BATCH_BYTES = 16 << 20
"""Of decoded rows of all nodes, about, in one batch."""


class FileReader(ABC):
    """Reads units of a plan, one after another; to be closed."""

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan

    def read(self, unit: FileUnit) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        """The rows of a unit that are kept, and their ids, of some megabytes at a time.

        Raises ``FilesChangedError`` if a file is not as it was planned, ``FileReadError`` if it cannot be read,
        ``UncertainTextError`` if it is not certain what Spark reads in it.
        """
        row = (unit.partition << PARTITION_SHIFT) + unit.first
        for batch in self._batches(unit):
            kept = _kept(batch, self._plan.condition)
            ids = row + np.arange(kept.num_rows)
            row += kept.num_rows
            yield ids if self._plan.row_ids is None else kept.column(self._plan.row_ids).to_numpy(), kept

    @abstractmethod
    def _batches(self, unit: FileUnit) -> Iterator[pa.RecordBatch]:
        """All rows of a unit; each file is looked at before and after, whether it is as planned."""

    def close(self) -> None:
        """Close what is open."""
        return


def decoded(column: pa.Array) -> pa.Array:
    """A column without a dictionary."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def with_constants(batch: pa.RecordBatch, plan: FilePlan, file: PlannedFile) -> pa.RecordBatch:
    """A batch with the columns that directories tell."""
    told = zip(plan.constants, file.constants, strict=True)
    constants = {name: pa.repeat(pa.scalar(value, kind), batch.num_rows) for (name, kind), value in told}
    columns = dict(zip(batch.schema.names, batch.columns, strict=True)) | constants
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _kept(batch: pa.RecordBatch, condition: Condition | None) -> pa.RecordBatch:
    """The rows that a filter keeps."""
    if condition is None:
        return batch
    columns = {name: decoded(batch.column(name)) for name in columns_of(condition)}
    mask = evaluate(condition, {name: _small(column) for name, column in columns.items()})
    return batch.filter(mask)


def _small(column: pa.Array) -> pa.Array:
    """Strings with offsets as Spark has them, so that they are compared with such."""
    is_string = pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type)
    return column.cast(pa.string()) if is_string else column


@contextlib.contextmanager
def reading(file: PlannedFile) -> Iterator[None]:
    """Around what reads a file: an error is that it has changed, if it has; else ``FileReadError``, or one of ours."""
    try:
        yield
    except (errors.DataError, errors.UncertainTextError):
        check_unchanged(file)
        raise
    except (OSError, pa.ArrowException) as error:
        check_unchanged(file)
        raise errors.FileReadError(f"{redact(file.uri)} cannot be read: {redact(error)}") from error


def check_unchanged(file: PlannedFile) -> None:
    """Raise ``FilesChangedError`` if a file has another size or modification time than planned, or is gone."""
    try:
        info = filesystems.request(file.uri, lambda filesystem, path: filesystem.get_file_info(path))
    except filesystems.StorageError as error:
        raise errors.FileReadError(f"{redact(file.uri)} cannot be reached: {error}") from error
    if info.type == fs.FileType.NotFound:
        raise changed(file, "is gone")
    if (info.size, info.mtime_ns) != (file.size, file.mtime_ns):
        raise changed(file, f"has {info.size:,} bytes of {info.mtime}")


def changed(file: PlannedFile, found: str) -> errors.FilesChangedError:
    """The error that a file is not as it was planned."""
    return errors.FilesChangedError(
        f"{redact(file.uri)} had {file.size:,} bytes when the fit was planned, and has changed since: {found}. Leave "
        "files alone while they are read, and read the DataFrame anew (spark.read)"
    )
