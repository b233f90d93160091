"""Files of a scan of ``tfrecord``: Spark's plan has but its options, from which the format plans its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from tfos_ml import errors
from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact
from tfos_ml.data.file_plan import FilePiece, PlannedFile
from tfos_ml.driver.file_listing import MOST_FILES, Listing
from tfos_ml.driver.file_scan import NotDirectError, tasks_of
from tfos_ml.tfrecord.files import DataFile
from tfos_ml.tfrecord.options import parsed, paths_of
from tfos_ml.tfrecord.plan import ReadPlan, plan_read, without_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def tfrecord_listing(options: Mapping[str, str], schema: StructType, numbered: Callable[[], DataFrame]) -> Listing:
    """The files of each task of a scan with a schema."""
    try:
        records: ReadPlan = plan_read(paths_of(options), parsed(options), schema)
    except errors.TfosMlError as error:
        raise NotDirectError(f"the driver cannot plan the TFRecords: {error}") from None
    tasks = [(number, file) for number, files in enumerate(records.tasks) for file in files]
    if len(tasks) > MOST_FILES:
        raise NotDirectError(f"there are {len(tasks):,} files, more than {MOST_FILES:,}")
    if tasks_of(numbered()) != max(1, len(records.tasks)):
        raise NotDirectError("Spark has other tasks than the format plans now: files have changed")
    pieces = tuple(FilePiece(task, number, (), None, file.size) for number, (task, file) in enumerate(tasks))
    return Listing(tuple(_planned(file) for _, file in tasks), pieces, (), without_files(records))


def _planned(file: DataFile) -> PlannedFile:
    def look(filesystem: fs.FileSystem, root: str) -> tuple[str, fs.FileInfo]:
        within = file.path.removeprefix(root).strip("/")
        uri = filesystems.child_uri(file.root, within) if within else file.root
        return uri, filesystem.get_file_info(file.path)

    try:
        uri, info = filesystems.request(file.root, look)
    except (OSError, pa.ArrowException) as error:
        raise NotDirectError(f"the driver cannot read {file.shown}: {redact(error)}") from None
    return PlannedFile(uri, info.size, info.mtime_ns, directories=file.partition)
