"""The files of a stage as the rows of one table, and where a classic session keeps it: a filesystem of Hadoop's."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tfos_ml.common.directories import owned_prefix
from tfos_ml.common.local_files import Content, FileWriter
from tfos_ml.common.redact import redact
from tfos_ml.errors import DestinationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("name", pa.string()), ("part", pa.int32()), ("content", pa.binary())])
DDL = "name string, part int, content binary"
Row: TypeAlias = tuple[str, int, bytes]
"""Name of a file, number of a part, content of the part."""
_NO_FILESYSTEM = re.compile(r"ClassNotFoundException: .*|No FileSystem for scheme .*")
_ADVICE = (
    "{path} cannot be opened: Spark saves and loads stages, and its JVM has no filesystem for it ({problem}). "
    "Start the session with one (for s3a:// spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, of Spark's own "
    "version of Hadoop), or name a place that Spark reaches. A SavedModel alone needs no JVM: fit with exportDir, and "
    "load it as TFModel(exportDir=...)."
)


def batches(files: Mapping[str, Iterable[bytes]]) -> Iterator[pa.RecordBatch]:
    """Files, each given as its parts, as rows: a batch for each part."""
    for name, parts in files.items():
        for number, part in enumerate(parts):
            yield pa.record_batch([[name], [number], [part]], schema=SCHEMA)


def joined(rows: Iterable[Row]) -> dict[str, Content]:
    """The files whose parts are in rows, in order; those of several parts on this host's disk."""
    files: dict[str, bytes] = {}
    writers: dict[str, FileWriter] = {}
    parts: Counter[str] = Counter()
    for name, part, content in rows:
        if part != parts[name]:
            raise LookupError(f"{name} has part {part} in place of part {parts[name]}")
        parts[name] += 1
        if part == 0:
            files[name] = content
            continue
        if part == 1:
            writers[name] = FileWriter()
            writers[name].write(files.pop(name))
        writers[name].write(content)
    return {**files, **{name: writer.finish() for name, writer in writers.items()}}


class HadoopFiles:
    """The filesystem of a path, as Spark sees it; classic sessions only."""

    def __init__(self, spark: SparkSession, path: str):
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        try:
            self._fs = self._path(path).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        except Exception as error:  # py4j's, or what pyspark makes of it
            problem = _NO_FILESYSTEM.search(str(error))
            if problem is None:
                raise
            raise DestinationError(_ADVICE.format(path=redact(path), problem=problem[0])) from None

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory."""
        return bool(self._fs.exists(self._path(path)))

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with all that is in it."""
        self._fs.delete(self._path(path), True)

    def write_table(self, batches: Iterable[pa.RecordBatch], path: str) -> None:
        """Write a Parquet table of one file, a row group at a time."""
        with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
            local = os.path.join(directory, "part-00000.parquet")
            with pq.ParquetWriter(local, SCHEMA, compression="snappy", use_dictionary=False) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            self._fs.mkdirs(self._path(path))
            self._fs.copyFromLocalFile(self._path(f"file://{local}"), self._path(path))

    def read_table(self, path: str) -> Iterator[Row]:
        """The rows of a Parquet table, a row group at a time."""
        with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
            local = os.path.join(directory, "data")
            self._fs.copyToLocalFile(False, self._path(path), self._path(f"file://{local}"), True)
            for part in sorted(Path(local).glob("*.parquet")):
                file = pq.ParquetFile(part)
                for group in range(file.num_row_groups):  # iter_batches would keep all that it has read
                    rows = file.read_row_group(group)
                    yield from zip(*(rows.column(name).to_pylist() for name in SCHEMA.names), strict=True)

    def replace(self, path: str, new: str, old: str) -> None:
        """Move `new` to `path`; what was there is kept as `old` until that is done."""
        replaces = self.exists(path)
        if replaces:
            self._rename(path, old)
        try:
            self._rename(new, path)
        except BaseException:
            if replaces:
                self._rename(old, path)
            raise
        self.delete(old)

    def _rename(self, source: str, target: str) -> None:
        if not self._fs.rename(self._path(source), self._path(target)):
            raise DestinationError(f"{source} could not be renamed to {target}. Is the directory above it writable?")
