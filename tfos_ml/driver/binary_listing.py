"""Files of a scan of ``binaryFile``: each is a row, of which all but the content is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from pyarrow import fs

from tfos_ml.data.file_plan import CONTENT_COLUMN, FilePiece, PlannedFile
from tfos_ml.driver.file_listing import Listing, look_at_each
from tfos_ml.driver.file_scan import FileSplit, NotDirectError

TOLD = {"path": "string", "length": "int64"}
"""Columns that the listing tells, and their Arrow types."""
LONGEST_SETTING, LONGEST = "spark.sql.sources.binaryFile.maxLength", (1 << 31) - 1


def binary_listing(found: Sequence[FileSplit], told: Sequence[tuple[str, str]], longest: int) -> Listing:
    """All files, with what directories tell, and then path and length."""

    def planned(filesystem: fs.FileSystem, path: str, split: FileSplit, info: fs.FileInfo) -> PlannedFile:
        return PlannedFile(split.uri, info.size, info.mtime_ns, (*split.constants, split.shown, split.file_size))

    files = look_at_each(found, planned)
    if any(file.size > longest for file in files.values()):
        raise NotDirectError(f"a file is longer than {LONGEST_SETTING}={longest}")
    numbers = {uri: number for number, uri in enumerate(files)}
    pieces = tuple(
        FilePiece(split.partition, numbers[split.uri], (), 1, split.file_size, hosts=split.hosts) for split in found
    )
    return Listing(tuple(files.values()), pieces, (*told, *TOLD.items()))


def check_columns(names: set[str], directories: set[str]) -> None:
    """Raise ``NotDirectError`` if columns are needed that nodes do not know."""
    unknown = sorted(names - directories - {CONTENT_COLUMN, *TOLD})
    if unknown:
        raise NotDirectError(f"nodes do not tell column '{unknown[0]}' of files")
