"""Looking at the files of a scan, one by one, on the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact
from tfos_ml.data.file_plan import FilePiece, PlannedFile
from tfos_ml.driver.file_scan import FileSplit, NotDirectError

MOST_FILES = 10_000
"""That the driver looks at."""
_THREADS = 16
Found = TypeVar("Found")


@dataclass(frozen=True)
class Listing:
    """What a plan says of files."""

    files: tuple[PlannedFile, ...]
    pieces: tuple[FilePiece, ...]  # in the order of Spark's scan
    constants: tuple[tuple[str, str], ...]  # columns that are told beforehand, and their Arrow types by name
    decoding: Any = None  # as in the plan


def look_at_each(
    found: Sequence[FileSplit], look: Callable[[fs.FileSystem, str, FileSplit, fs.FileInfo], Found]
) -> dict[str, Found]:
    """What is found of each file, by URI, in the order of the scan.

    Raises ``NotDirectError`` if a file cannot be read here, is not as Spark has listed it, or there are too many.
    """
    listed = {split.uri: split for split in found}
    if len(listed) > MOST_FILES:
        raise NotDirectError(f"there are {len(listed):,} files, more than {MOST_FILES:,}")
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="files") as pool:
        return dict(zip(listed, pool.map(lambda split: _look(split, look), listed.values()), strict=True))


def _look(split: FileSplit, look: Callable[[fs.FileSystem, str, FileSplit, fs.FileInfo], Found]) -> Found:
    def request(filesystem: fs.FileSystem, path: str) -> Found:
        info = filesystem.get_file_info(path)
        if info.size != split.file_size or not is_time(info.mtime_ns, split.modified):
            shown = redact(split.uri)
            raise NotDirectError(f"{shown} has changed since Spark listed the files; read the DataFrame anew")
        return look(filesystem, path, split, info)

    try:
        return filesystems.request(split.uri, request)
    except (OSError, pa.ArrowException) as error:
        shown = redact(split.uri)
        raise NotDirectError(f"the driver cannot read {shown}: {redact(error)}") from None


def is_time(nanoseconds: int | None, milliseconds: int) -> bool:
    """Whether two times of one file are the same; some filesystems tell whole seconds, some none."""
    if nanoseconds is None:
        return True
    whole = nanoseconds % 10**9 == 0
    return nanoseconds // 10**9 == milliseconds // 1000 if whole else nanoseconds // 10**6 == milliseconds
