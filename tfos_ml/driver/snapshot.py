"""Finds the snapshot in ``cacheDir``; if there is none, a Spark job writes one."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np
from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.hadoop import pyarrow_uri
from tfos_ml.common.redact import redact
from tfos_ml.common.timeouts import LEFTOVER_SECONDS
from tfos_ml.data.row_order import pack_counts
from tfos_ml.data.schema import ROW_COLUMN
from tfos_ml.data.snapshot_layout import Snapshot, StoredColumn
from tfos_ml.driver.input_files import InputFiles, changes, input_files
from tfos_ml.driver.snapshot_writer import digest, pack_lists, write_rows
from tfos_ml.errors import SnapshotError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)
_PART = re.compile(r"part-\d+-.*\.parquet$")
MANIFEST = "manifest.json"
BUCKETS = 60  # or a multiple: divides evenly among 1 to 6, 10, 12, 15, 20 and 30 nodes
MOST_NAMED = 3  # in a message
_writing = threading.Lock()  # of several fits that begin at once, only one writes
_known: dict[str, DataFrame] = {}  # by directory, a DataFrame that has its rows


@dataclass(frozen=True)
class WrittenSnapshot:
    """A snapshot, and its origin."""

    snapshot: Snapshot
    time: float  # in seconds since 1970
    application: str  # of Spark
    inputs: InputFiles = field(repr=False)  # size and time of the DataFrame's files, if known
    is_new: bool = False

    def summary(self) -> dict[str, Any]:
        """The entry in the summary of a fitted model."""
        return {"rows": self.snapshot.rows, "time": self.time, "application": self.application, "is_new": self.is_new}

    def notice(self, df: DataFrame) -> str:
        """A warning if the input files of a DataFrame have changed since its rows were written; else empty."""
        changed = "" if self.is_new else changes(self.inputs, input_files(df))
        return changed and (
            f"cacheDir has {self}, but the DataFrame's files have changed since then: {changed}. Delete the directory "
            "to have it written again."
        )

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"{self.snapshot.rows:,} rows, written {when} by {self.application}"


class SnapshotDirectory:
    """The directory that ``cacheDir`` names, by an absolute path or a URI that Spark or pyarrow accepts."""

    def __init__(self, uri: str, spark: SparkSession):
        self._spark = spark
        self._uri = pyarrow_uri(uri)
        self._sparks = spark_path(uri)
        self._shown = f"cacheDir={redact(uri)!r}"

    def take(
        self, df: DataFrame, numbered: Callable[[], DataFrame], columns: Sequence[StoredColumn], nodes: int
    ) -> WrittenSnapshot:
        """The snapshot of a DataFrame; writes it first if there is none.

        `numbered` has the `columns` as ``c0``, ``c1``..., and the row ids; `nodes` is the number of nodes that train.
        Raises ``SnapshotError`` if the directory cannot be used, lacks files, has other columns, or has the rows of
        another DataFrame of this program; ``EmptyDataError`` if there are no rows to write.
        """
        with _writing, self._errors():
            written = self._read()
            if written is None:
                written = self._write(df, pack_lists(numbered(), columns), tuple(columns), nodes)
            else:
                self._check(written, columns)
                self._check_rows(written.snapshot, df, numbered, columns)
            _known[self._uri] = df
            return written

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except filesystems.StorageError as error:
            raise SnapshotError(
                f"{self._shown} cannot be used: {error}. Name a directory that this host and all executors reach."
            ) from None

    # Reading

    def _read(self) -> WrittenSnapshot | None:
        text = filesystems.request(filesystems.child_uri(self._uri, MANIFEST), _content)
        if text is None:
            return None
        try:
            manifest = json.loads(text)
            directory = filesystems.child_uri(self._uri, manifest.pop("directory"))
            columns = tuple(StoredColumn(**column) for column in manifest["snapshot"].pop("columns"))
            snapshot = Snapshot(directory, columns, **manifest.pop("snapshot"))
            written = WrittenSnapshot(snapshot=snapshot, **manifest)
            msgspec.convert(asdict(written), WrittenSnapshot)  # for its checks of types
            snapshot.files_of(snapshot.rows)  # for those of counts and names
            return written
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, msgspec.ValidationError):
            raise SnapshotError(
                f"{self._shown} has a {MANIFEST} of another version. Delete the directory, or name another."
            ) from None

    def _check(self, written: WrittenSnapshot, columns: Sequence[StoredColumn]) -> None:
        """Raise ``SnapshotError`` if the snapshot cannot have the rows of this fit."""
        snapshot = written.snapshot
        lacking = [str(column) for column in columns if snapshot.position(column) is None]
        if lacking:
            raise SnapshotError(
                f"The snapshot in {self._shown} does not have the columns {lacking} of this fit; it has "
                f"{[str(column) for column in snapshot.columns]}. Delete the directory, or name another."
            )
        there = filesystems.request(snapshot.directory, _sizes)
        wrong = [name for name, size in snapshot.files.items() if there.get(name) != size]
        if wrong:
            raise SnapshotError(
                f"The snapshot in {self._shown} is damaged: {len(wrong)} of {len(snapshot.files)} files are missing or "
                f"have another size ({', '.join(wrong[:MOST_NAMED])}). Delete the directory, or name another."
            )

    def _check_rows(
        self, snapshot: Snapshot, df: DataFrame, numbered: Callable[[], DataFrame], columns: Sequence[StoredColumn]
    ) -> None:
        """Raise ``SnapshotError`` if an earlier fit of this program had other rows here, such as another fold."""
        known = _known.get(self._uri)
        if known is None or known.sparkSession is not self._spark or known.sameSemantics(df):
            return
        stored = self._spark.read.parquet(f"{self._sparks}/{_name(snapshot.directory)}")
        names = [f"c{i}" for i in range(len(columns))]
        rows = pack_lists(numbered(), columns)
        same = [f"c{snapshot.position(column)}" for column in columns]
        if digest(stored, [*same, ROW_COLUMN]) != digest(rows, [*names, ROW_COLUMN]):
            raise SnapshotError(
                f"{self._shown} has the rows of another DataFrame, on which this program has trained before. Name "
                "another directory. In a search, give the estimator itself to CrossValidator, and put the search into "
                "the Pipeline: it then writes the rows of each fold."
            )

    # Writing

    def _write(self, df: DataFrame, rows: DataFrame, columns: tuple[StoredColumn, ...], nodes: int) -> WrittenSnapshot:
        probe = filesystems.child_uri(self._uri, f".probe-{uuid.uuid4().hex[:12]}")
        filesystems.request(probe, filesystems.write_and_delete)
        self._delete_leftovers()
        buckets, name = math.lcm(BUCKETS, nodes), f"rows-{uuid.uuid4().hex[:12]}"
        directory = filesystems.child_uri(self._uri, name)
        try:
            counts = write_rows(rows, f"{self._sparks}/{name}", buckets)
            files = filesystems.request(directory, _sizes)
            snapshot = Snapshot(directory, columns, buckets, pack_counts(counts), files)
            lacking = [str(b) for b in np.flatnonzero(snapshot.bucket_rows) if not snapshot.files_of(int(b))]
            if lacking:
                raise SnapshotError(
                    f"{self._shown} lacks files that Spark tasks have written, so they see another directory there. "
                    "Name one that this host and all executors can reach."
                )
            written = WrittenSnapshot(snapshot, time.time(), self._application(), input_files(df), is_new=True)
            self._publish(written, name)
        except BaseException:
            with contextlib.suppress(filesystems.StorageError):
                filesystems.request(directory, _delete)
            raise
        return written

    def _publish(self, written: WrittenSnapshot, name: str) -> None:
        manifest: dict[str, Any] = asdict(written) | {"directory": name}
        del manifest["is_new"], manifest["snapshot"]["directory"]
        content = json.dumps(manifest, indent=1, sort_keys=True).encode()

        def publish(filesystem: fs.FileSystem, path: str) -> None:
            partial = f"{path}/{name}/{MANIFEST}"
            with filesystem.open_output_stream(partial) as stream:
                stream.write(content)
            filesystem.move(partial, f"{path}/{MANIFEST}")

        filesystems.request(self._uri, publish)

    def _application(self) -> str:
        name = self._spark.conf.get("spark.app.name", "")
        return f"{name} ({self._spark.conf.get('spark.app.id', '')})"

    def _delete_leftovers(self) -> None:
        def delete(filesystem: fs.FileSystem, path: str) -> None:
            for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
                if info.type != fs.FileType.Directory or not info.base_name.startswith("rows-"):
                    continue
                files = filesystem.get_file_info(fs.FileSelector(info.path, recursive=True))
                newest = max((file.mtime_ns or 0 for file in files), default=0) / 1e9
                if time.time() - newest > LEFTOVER_SECONDS:
                    filesystem.delete_dir(info.path)

        filesystems.request(self._uri, delete)


def delete_snapshot(uri: str) -> None:
    """Delete a directory with its content; raises nothing."""
    _known.pop(uri, None)
    try:
        filesystems.request(uri, _delete)
    except Exception as error:
        logger.warning("The rows in %s could not be deleted: %s", redact(uri), error)


def spark_path(uri: str) -> str:
    """A path or URI of pyarrow as Spark takes it: local paths with a scheme, S3 without credentials, unquoted."""
    if "://" not in uri:
        return f"file://{uri}" if uri.startswith("/") else uri
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.scheme in ("s3", "s3a", "s3n"):
        return f"s3a://{parts.netloc.rpartition('@')[2]}{path}".rstrip("/")
    return (uri if path == parts.path else parts._replace(path=path).geturl()).rstrip("/")


def _content(filesystem: fs.FileSystem, path: str) -> bytes | None:
    if filesystem.get_file_info(path).type != fs.FileType.File:
        return None
    with filesystem.open_input_stream(path) as stream:
        content: bytes = stream.read()
    return content


def _sizes(filesystem: fs.FileSystem, path: str) -> dict[str, int]:
    """Sizes of the Parquet files in a directory by name."""
    infos = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return {info.base_name: info.size for info in infos if _PART.match(info.base_name)}


def _delete(filesystem: fs.FileSystem, path: str) -> None:
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        filesystem.delete_dir(path)


def _name(uri: str) -> str:
    return uri.partition("?")[0].rpartition("/")[2]
