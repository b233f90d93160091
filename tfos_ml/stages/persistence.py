"""Saving and loading of stages, alone or inside pipelines and tuned models.

A saved stage is a directory on any filesystem that Spark can write to. It contains ``metadata``, the Params in the JSON
of Spark ML, and ``data``, the files of the stage in one Parquet table, with a row for each MiB. Large files are copied
from file to file. With a classic session, the table is copied from and to a local file, which takes no memory of
Spark's driver, and the stage is written to a temporary directory and then renamed. Spark Connect has no access to the
filesystem: there a task writes the table from artifacts of the session, and ``metadata`` is written last.

Functions, callbacks and custom objects are pickled: loading a stage runs code that its writer has put into it. Load
only stages that you trust.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import uuid
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import functions as F

from tfos_ml.common.directories import owned_prefix
from tfos_ml.common.local_files import Content, FileWriter, parts_of
from tfos_ml.common.redact import redact, without_credentials
from tfos_ml.common.sessions import is_connect
from tfos_ml.common.spark_api import map_in_arrow, reader_context
from tfos_ml.errors import DestinationError, ModelError, TfosMlError
from tfos_ml.protocol.artifacts import Artifact, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT_PARTS = 128  # of each file, in one result of Spark
_VERSION = "tfosMlVersion"
_SECRET, _UNSAVED = "nodeEnv", "nodeEnvNames"  # all its values may be secrets
_CHANGED = "withoutCredentials"  # names of Params whose URIs had users, passwords or secret parameters
_MARK = "save.id"  # on Spark Connect, in the data of each save
_SCHEMA = pa.schema([("name", pa.string()), ("part", pa.int32()), ("content", pa.binary())])
_DDL = "name string, part int, content binary"
Row: TypeAlias = tuple[str, int, bytes]
"""Name of a file, number of a part, content of the part."""
_NO_FILESYSTEM = re.compile(r"ClassNotFoundException: .*|No FileSystem for scheme .*")
_ADVICE = (
    "{path} cannot be opened: Spark saves and loads stages, and its JVM has no filesystem for it ({problem}). "
    "Start the session with one (for s3a:// spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, of Spark's own "
    "version of Hadoop), or name a place that Spark reaches. A SavedModel alone needs no JVM: fit with exportDir, and "
    "load it as TFModel(exportDir=...)."
)
_EXISTS = "{} exists already. Choose another path, or save with write().overwrite().save()."


class Saveable(MLReadable[Any], MLWritable):
    """A stage that can be saved: Params, and what :meth:`_files` and :meth:`_facts` return."""

    def write(self) -> StageWriter:
        """A writer: ``stage.write().overwrite().save(path)``."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """A reader: ``cls.read().load(path)``."""
        return StageReader(cls)

    def _files(self) -> Mapping[str, Content]:
        """Content beside the Params, by name."""
        return {}

    def _facts(self) -> dict[str, Any]:
        """Entries for the metadata; JSON-serializable."""
        return {}

    def _restore(self, files: Mapping[str, Content], facts: dict[str, Any]) -> None:
        """Restore the results of :meth:`_files` and :meth:`_facts`."""


class StageWriter(MLWriter):
    """Writes one stage."""

    def __init__(self, stage: Any):
        super().__init__()
        self._stage = stage

    def save(self, path: str) -> None:
        """Save the stage.

        Raises ``DestinationError`` if `path` exists and ``overwrite()`` was not called.
        """
        if is_connect(self.sparkSession):
            self._write_by_spark(path)
            return
        files = _HadoopFiles(self.sparkSession, path)
        if files.exists(path) and not self.shouldOverwrite:
            raise DestinationError(_EXISTS.format(path))
        aside = f"{path.rstrip('/')}.{uuid.uuid4().hex[:12]}"
        try:
            contents = self._stage._files().items()
            files.write_table(_batches({name: parts_of(content) for name, content in contents}), f"{aside}.new/data")
            self._write_parts(f"{aside}.new")
            self._write_metadata(f"{aside}.new", "error")
            files.replace(path, f"{aside}.new", f"{aside}.old")
        finally:
            files.delete(f"{aside}.new")

    def _write_by_spark(self, path: str) -> None:
        """Write with Spark, in one task that gets the files; this process cannot see what is at the path."""
        spark, mark = self.sparkSession, uuid.uuid4().hex.encode()
        files = {name: publish(spark, content) for name, content in {_MARK: mark, **self._stage._files()}.items()}
        rows = map_in_arrow(spark.range(0, 1, 1, 1), partial(_published, files), _DDL)
        rows.write.mode("overwrite" if self.shouldOverwrite else "ignore").parquet(f"{path}/data")
        if not self.shouldOverwrite and _mark_at(self.sparkSession, path) != mark:
            raise DestinationError(_EXISTS.format(path))
        self._write_parts(path)
        self._write_metadata(path, "overwrite" if self.shouldOverwrite else "error")

    def _write_parts(self, path: str) -> None:
        """Write stages that are parts of this one below a directory, before its metadata."""

    def _write_metadata(self, path: str, mode: str) -> None:
        from tfos_ml.common.version import __version__

        given, unsaved = _without_secrets({param.name: value for param, value in self._stage._paramMap.items()})
        facts = {_VERSION: __version__, **unsaved, **self._stage._facts()}
        context = reader_context(self.sparkSession)
        text = DefaultParamsWriter._get_metadata_to_save(self._stage, context, facts, given)
        rows = self.sparkSession.createDataFrame([(text,)], "value string")
        try:
            rows.coalesce(1).write.mode(mode).text(f"{path}/metadata")
        except AnalysisException as error:
            if "PATH_ALREADY_EXISTS" not in str(error):
                raise
            raise DestinationError(_EXISTS.format(path)) from None  # of another kind of stage, without such data


class StageReader(MLReader[Any]):
    """Reads one stage of a class."""

    def __init__(self, cls: type):
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        """The stage that was saved at `path`.

        Raises ``ModelError`` if it is damaged, or a stage of another class.
        """
        spark = self.sparkSession
        if not is_connect(spark):
            _HadoopFiles(spark, path)
        with whole(self._cls, path):
            metadata = DefaultParamsReader.loadMetadata(path, reader_context(spark))
            kind = metadata["class"]
            if kind.rpartition(".")[2] != self._cls.__name__:  # where it lay in the package does not matter
                raise ModelError(f"{path} holds a {kind}, not a {self._cls.__name__}. Load it with its class.")
            return restore(self._cls, metadata, _read(spark, path), path)


@contextlib.contextmanager
def whole(cls: type, path: str) -> Iterator[None]:
    """Raise ``ModelError`` if a stage that is read within is not as it was saved."""
    try:
        yield
    except TfosMlError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, UnpicklingError, EOFError) as error:
        raise ModelError(
            f"{path} holds no {cls.__name__} that can be read ({type(error).__name__}: {error}). Save it again."
        ) from error


def _read(spark: SparkSession, path: str) -> dict[str, Content]:
    """The files of a stage."""
    if is_connect(spark):
        return _joined(_rows_by_spark(spark, f"{path}/data"))
    return _joined(_HadoopFiles(spark, path).read_table(f"{path}/data"))


def _rows_by_spark(spark: SparkSession, path: str) -> Iterator[Row]:
    """The rows of a table, in results of limited size: Spark's driver holds each of them whole."""
    table = spark.read.parquet(path)
    for start in count(0, RESULT_PARTS):
        parts = table.where(F.col("part").between(start, start + RESULT_PARTS - 1)).coalesce(1)
        number = 0
        for row in parts.sortWithinPartitions("part").toLocalIterator():
            number += 1
            yield row.name, row.part, bytes(row.content)
        if number < RESULT_PARTS:  # no file has more parts
            return


def _joined(rows: Iterable[Row]) -> dict[str, Content]:
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
    files.pop(_MARK, None)
    return {**files, **{name: writer.finish() for name, writer in writers.items()}}


def _mark_at(spark: SparkSession, path: str) -> bytes | None:
    """The id of the save that wrote the data at `path`.

    Reading data that may not exist could raise an error, which a Connect server would log with all its causes.
    """
    try:
        row = spark.read.parquet(f"{path}/data").where(F.col("name") == _MARK).select("content").first()
    except AnalysisException:  # data of another kind of stage
        return None
    return None if row is None else bytes(row.content)


def describe(stage: Any) -> dict[str, Any]:
    """A stage without its files, for :func:`restore`; JSON-serializable."""
    from tfos_ml.common.version import __version__

    return {
        "uid": stage.uid,
        _VERSION: __version__,
        "paramMap": {param.name: value for param, value in stage._paramMap.items()},
        "defaultParamMap": {param.name: value for param, value in stage._defaultParamMap.items()},
        **stage._facts(),
    }


def without_secrets(described: Mapping[str, Any]) -> dict[str, Any]:
    """The result of :func:`describe` with the names in place of the values that may be secrets."""
    params, unsaved = _without_secrets(described["paramMap"])
    return {**described, "paramMap": params, **unsaved}


def _without_secrets(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Params without what everyone who can read the files could read, and for :func:`restore` the names of that."""
    others = {name: value for name, value in params.items() if name != _SECRET}
    saved = {name: without_credentials(value) for name, value in others.items()}
    changed = sorted(name for name in others if saved[name] != others[name])
    return saved, {_UNSAVED: sorted(params.get(_SECRET, ())), _CHANGED: changed}


def restore(cls: type, metadata: dict[str, Any], files: Mapping[str, Content], path: str) -> Any:
    """A stage of a class, with the saved Params that it still has; a warning names `path` and the others."""
    from tfos_ml.common.version import __version__

    stage = cls()
    stage._resetUid(metadata["uid"])
    saved = metadata.get(_VERSION)
    gone = [name for name in metadata["paramMap"] if not stage.hasParam(name)]
    if saved != __version__ or gone:
        note = f" It has Params that no longer exist: {gone}." if gone else ""
        warnings.warn(f"{path} was saved by tfos_ml {saved}; this is {__version__}.{note}", UserWarning, stacklevel=3)
    if unsaved := metadata.get(_UNSAVED):
        warnings.warn(
            f"{path} was saved without the values of {_SECRET}, which may be secrets: {', '.join(unsaved)}. Set them "
            "with setNodeEnv before the next fit.",
            UserWarning,
            stacklevel=3,
        )
    if changed := metadata.get(_CHANGED):
        warnings.warn(
            f"{path} was saved without the users and passwords in {', '.join(changed)}. Set these Params again if they "
            "need them.",
            UserWarning,
            stacklevel=3,
        )
    for name, value in metadata["defaultParamMap"].items():
        if stage.hasParam(name):
            stage._setDefault(**{name: value})
    for name, value in metadata["paramMap"].items():
        if stage.hasParam(name):
            stage.set(stage.getParam(name), value)
    stage._restore(files, metadata)
    return stage


def _batches(files: Mapping[str, Iterable[bytes]]) -> Iterator[pa.RecordBatch]:
    """Files, each given as its parts, as rows: a batch for each part."""
    for name, parts in files.items():
        for number, part in enumerate(parts):
            yield pa.record_batch([[name], [number], [part]], schema=_SCHEMA)


def _published(files: Mapping[str, Artifact], _: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Published files as rows; runs on an executor."""
    return _batches({name: artifact.parts() for name, artifact in files.items()})


class _HadoopFiles:
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
        return bool(self._fs.exists(self._path(path)))

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)

    def write_table(self, batches: Iterable[pa.RecordBatch], path: str) -> None:
        """Write a Parquet table of one file, a row group at a time."""
        with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
            local = os.path.join(directory, "part-00000.parquet")
            with pq.ParquetWriter(local, _SCHEMA, compression="snappy", use_dictionary=False) as writer:
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
                    yield from zip(*(rows.column(name).to_pylist() for name in _SCHEMA.names), strict=True)

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
