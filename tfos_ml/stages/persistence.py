"""Saving and loading of stages, alone or inside pipelines and tuned models.

A saved stage is a directory on any filesystem that Spark can write to. It contains ``metadata``, the Params in the JSON
of Spark ML, and ``data``, the files of the stage in one Parquet table. With a classic session, the table is copied from
and to a local file, which takes no memory of Spark's driver, and the stage is written to a temporary directory and then
renamed. Spark Connect has no access to the filesystem: there Spark writes the table, and ``metadata`` is written last.

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
from collections.abc import Iterable, Iterator, Mapping
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import functions as F

from tfos_ml.common.directories import owned_prefix
from tfos_ml.common.redact import redact, without_credentials
from tfos_ml.common.sessions import is_connect
from tfos_ml.common.spark_api import dataframe_of, reader_context
from tfos_ml.errors import ClusterConfigError, DestinationError, ModelError, TfosMlError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PART_BYTES = 1 << 20
ROW_GROUP_PARTS = 16
_VERSION = "tfosMlVersion"
_SECRET, _UNSAVED = "nodeEnv", "nodeEnvNames"  # all its values may be secrets
_CHANGED = "withoutCredentials"  # names of Params whose URIs had users, passwords or secret parameters
_MARK = "save.id"  # on Spark Connect, in the data of each save
_LIMITS = {"spark.driver.maxResultSize": "1g", "spark.rpc.message.maxSize": "128"}
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

    def _files(self) -> dict[str, bytes]:
        """Content beside the Params, by name."""
        return {}

    def _facts(self) -> dict[str, Any]:
        """Entries for the metadata; JSON-serializable."""
        return {}

    def _restore(self, files: dict[str, bytes], facts: dict[str, Any]) -> None:
        """Restore the results of :meth:`_files` and :meth:`_facts`."""


class StageWriter(MLWriter):
    """Writes one stage."""

    def __init__(self, stage: Any):
        super().__init__()
        self._stage = stage

    def save(self, path: str) -> None:
        """Save the stage.

        Raises ``DestinationError`` if `path` exists and ``overwrite()`` was not called, and ``ClusterConfigError`` if
        the stage is larger than a setting of Spark allows.
        """
        if is_connect(self.sparkSession):
            self._write_by_spark(path)
            return
        files = _HadoopFiles(self.sparkSession, path)
        if files.exists(path) and not self.shouldOverwrite:
            raise DestinationError(_EXISTS.format(path))
        aside = f"{path.rstrip('/')}.{uuid.uuid4().hex[:12]}"
        try:
            files.write_table(_table(self._stage._files()), f"{aside}.new/data")
            self._write_parts(f"{aside}.new")
            self._write_metadata(f"{aside}.new", "error")
            files.replace(path, f"{aside}.new", f"{aside}.old")
        finally:
            files.delete(f"{aside}.new")

    def _write_by_spark(self, path: str) -> None:
        """Write with Spark; this process cannot see what is at the path."""
        mark = uuid.uuid4().hex.encode()
        with _within_limits(self.sparkSession, f"Saving {self._stage.uid}"):
            rows = dataframe_of(self.sparkSession, _table({_MARK: mark, **self._stage._files()}))
            rows.coalesce(1).write.mode("overwrite" if self.shouldOverwrite else "ignore").parquet(f"{path}/data")
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

        Raises ``ClusterConfigError`` if it is larger than a setting of Spark allows, and ``ModelError`` if it is
        damaged, or a stage of another class.
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


def _read(spark: SparkSession, path: str) -> dict[str, bytes]:
    """The files of a stage."""
    if not is_connect(spark):
        return _joined(_HadoopFiles(spark, path).read_table(f"{path}/data"))
    with _within_limits(spark, f"Loading {path}"):  # part after part, so that not all of them need fit a Spark result
        rows = spark.read.parquet(f"{path}/data").toLocalIterator()
        return _joined((row.name, row.part, row.content) for row in rows)


def _joined(parts: Iterable[tuple[str, int, bytes]]) -> dict[str, bytes]:
    files: dict[str, dict[int, bytes]] = {}
    for name, part, content in parts:
        files.setdefault(name, {})[part] = bytes(content)
    files.pop(_MARK, None)
    return {name: b"".join(found[number] for number in sorted(found)) for name, found in files.items()}


def _mark_at(spark: SparkSession, path: str) -> bytes | None:
    """The id of the save that wrote the data at `path`.

    Reading data that may not exist could raise an error, which a Connect server would log with all its causes.
    """
    try:
        row = spark.read.parquet(f"{path}/data").where(F.col("name") == _MARK).select("content").first()
    except AnalysisException:  # data of another kind of stage
        return None
    return None if row is None else bytes(row.content)


@contextlib.contextmanager
def _within_limits(spark: SparkSession, what: str) -> Iterator[None]:
    """Raise ``ClusterConfigError`` if the files of a stage exceed a limit of Spark."""
    try:
        yield
    except Exception as error:
        text = str(error)
        for setting, default in _LIMITS.items():
            if setting in text:
                reason = next(line for line in text.splitlines() if setting in line).strip()
                raise ClusterConfigError(
                    f"{what} takes more than {setting}={spark.conf.get(setting, default)} allows: {reason}. Set "
                    f"{setting} to more when the session is built."
                ) from error
        raise


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


def restore(cls: type, metadata: dict[str, Any], files: dict[str, bytes], path: str) -> Any:
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


def _table(files: dict[str, bytes]) -> pa.Table:
    """Files as rows, in parts."""
    rows = list(_parts(files))
    columns = {
        "name": pa.array([name for name, _, _ in rows], pa.string()),
        "part": pa.array([part for _, part, _ in rows], pa.int32()),
        "content": pa.array([content for _, _, content in rows], pa.binary()),
    }
    return pa.table(columns)


def _parts(files: dict[str, bytes]) -> Iterator[tuple[str, int, bytes]]:
    for name, content in files.items():
        for part, start in enumerate(range(0, max(1, len(content)), PART_BYTES)):
            yield name, part, content[start : start + PART_BYTES]


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

    def write_table(self, table: pa.Table, path: str) -> None:
        """Write a Parquet table of one file."""
        with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
            local = os.path.join(directory, "part-00000.parquet")
            pq.write_table(table, local, row_group_size=ROW_GROUP_PARTS, compression="snappy")
            self._fs.mkdirs(self._path(path))
            self._fs.copyFromLocalFile(self._path(f"file://{local}"), self._path(path))

    def read_table(self, path: str) -> Iterator[tuple[str, int, bytes]]:
        """The rows of a Parquet table, a part at a time."""
        with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
            local = os.path.join(directory, "data")
            self._fs.copyToLocalFile(False, self._path(path), self._path(f"file://{local}"), True)
            for batch in ds.dataset(local, format="parquet").to_batches(batch_size=ROW_GROUP_PARTS):
                columns = (batch.column(name).to_pylist() for name in ("name", "part", "content"))
                yield from zip(*columns, strict=True)

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
