"""Rows that are written once, as Parquet, and read by the nodes of this fit and of later ones with the same rows."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tfos_ml.agent.cache_writer import RESULT, CacheWriter
from tfos_ml.common import filesystems
from tfos_ml.common.redact import redact
from tfos_ml.data import row_cache
from tfos_ml.data.row_cache import CachedRows, WrittenFile
from tfos_ml.data.schema import FeedSchema
from tfos_ml.driver.file_scan import NotDirectError
from tfos_ml.driver.plan_key import named_key, plan_key
from tfos_ml.errors import DestinationError, FilesChangedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_writing = threading.Lock()  # so that of several fits of a program, that begin at once, one writes


@dataclass(frozen=True)
class RowCache:
    """Where the rows of a DataFrame are cached, and how they are made."""

    directory: str = field(repr=False)  # ``cacheDir`` as ``filesystems.open_uri`` takes it
    expiry: float  # seconds without use
    schema: FeedSchema  # of what is written
    rows: DataFrame = field(repr=False)  # the columns that the cached rows are made of; what the key is of
    numbered: Callable[[], DataFrame] = field(repr=False)  # what is written
    name: str | None = None  # the user's own key of the rows, whatever their plan
    indicator: str | None = None  # column by whose name rows for validation are marked

    def key(self) -> str:
        """The key of the rows; raises ``NotDirectError`` if they have none."""
        columns = [(spec.column, spec.dtype, spec.ndim, spec.kind) for spec in self.schema.columns]
        described = repr((columns, self.rows.columns))
        if self.name is None:
            return plan_key(self.rows, described)
        return named_key(self.name, described, self.rows.schema.simpleString(), self.indicator or "")

    def find(self, key: str) -> CachedRows | None:
        """The rows of a key, if they are there; raises ``DestinationError`` if ``cacheDir`` cannot be reached."""
        try:
            return row_cache.find(self.directory, key, self.expiry)
        except filesystems.StorageError as error:
            raise self._failure(f"cannot be read: {error}") from None

    def take(self, key: str) -> tuple[CachedRows, bool]:
        """The rows of a key, and whether they were there; else they are written, by a job.

        Raises ``DestinationError`` if they cannot be, ``FilesChangedError`` if files of the DataFrame changed
        meanwhile.
        """
        with _writing:
            try:
                found = self.find(key)
                return (self._written(key), False) if found is None else (self._used(found), True)
            except filesystems.StorageError as error:
                raise self._failure(f"cannot be written: {error}") from None

    def _used(self, found: CachedRows) -> CachedRows:
        """Note that rows are used, where the directory may be written."""
        with contextlib.suppress(filesystems.StorageError):
            row_cache.publish(self.directory, replace(found, used=time.time()))
        return found

    def _written(self, key: str) -> CachedRows:
        name = f".preflight-{uuid.uuid4().hex[:12]}"
        filesystems.request(filesystems.child_uri(self.directory, name), filesystems.write_and_delete)
        directory = row_cache.new_copy(self.directory, key)
        filesystems.request(directory, lambda filesystem, path: filesystem.create_dir(path, recursive=True))
        try:
            copy = CachedRows(key, directory, self._files(directory), time.time())
            if not self._has_key(key):
                raise FilesChangedError("Files of the DataFrame have changed while its rows were written to cacheDir.")
            published = row_cache.publish(self.directory, copy)
            if published is None:
                raise self._failure(
                    "lacks files that tasks have written: it is another directory to them, or is emptied"
                )
        except BaseException:
            with contextlib.suppress(filesystems.StorageError):
                row_cache.discard(directory)
            raise
        with contextlib.suppress(filesystems.StorageError):  # the next fit that writes has another go
            row_cache.delete(self.directory, self.expiry)
        return published

    def _has_key(self, key: str) -> bool:
        """Whether the rows still have a key."""
        try:
            return self.key() == key
        except NotDirectError:
            return False

    def _files(self, directory: str) -> tuple[WrittenFile, ...]:
        writer = CacheWriter(directory, self.schema)
        told = [row.asDict() for row in self.numbered().mapInArrow(writer, RESULT).collect()]
        problems = [row["problem"] for row in told if row["problem"] is not None]
        if problems:
            raise self._failure(f"cannot be written by a task of Spark's: {problems[0]}")
        return tuple(WrittenFile(**{name: v for name, v in row.items() if name != "problem"}) for row in told)

    def _failure(self, why: str) -> DestinationError:
        return DestinationError(
            f"cacheDir={redact(self.directory)!r} {why}. Choose a directory that this host and all executors reach, "
            "or unset cacheDir."
        )
