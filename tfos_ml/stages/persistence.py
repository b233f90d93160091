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
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import functions as F

from tfos_ml.common.local_files import Content, parts_of
from tfos_ml.common.redact import without_credentials
from tfos_ml.common.sessions import is_connect
from tfos_ml.common.spark_api import map_in_arrow, reader_context
from tfos_ml.common.version import __version__
from tfos_ml.errors import DestinationError, ModelError, TfosMlError
from tfos_ml.protocol.artifacts import Artifact, publish
from tfos_ml.stages.stage_files import DDL, HadoopFiles, Row, batches, joined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT_PARTS = 128  # of each file, in one result of Spark
_VERSION, _PARTS = "tfosMlVersion", "parts"
_SECRET = "nodeEnv"  # all its values may be secrets
_LACKING = "withoutSecrets"  # names of Params that are saved without what may be a secret
_EXISTS = "{} exists already. Choose another path, or save with write().overwrite().save()."


class Saveable(MLReadable[Any], MLWritable):
    """A stage that can be saved: Params, and what :meth:`_files`, :meth:`_extra_metadata` and :meth:`_parts` return."""

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

    def _extra_metadata(self) -> dict[str, Any]:
        """Entries for the metadata; JSON-serializable."""
        return {}

    def _restore(self, files: Mapping[str, Content], metadata: dict[str, Any]) -> None:
        """Restore the results of :meth:`_files` and :meth:`_extra_metadata`."""

    def _parts(self) -> dict[str, Any]:
        """Stages that are parts of this one, by name."""
        return {}

    def _set_parts(self, parts: dict[str, Any]) -> None:
        """Restore the result of :meth:`_parts`."""


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
        files = HadoopFiles(self.sparkSession, path)
        if files.exists(path) and not self.shouldOverwrite:
            raise DestinationError(_EXISTS.format(path))
        aside = f"{path.rstrip('/')}.{uuid.uuid4().hex[:12]}"
        try:
            contents = self._stage._files().items()
            files.write_table(batches({name: parts_of(content) for name, content in contents}), f"{aside}.new/data")
            self._write_parts(f"{aside}.new")
            self._write_metadata(f"{aside}.new", "error")
            files.replace(path, f"{aside}.new", f"{aside}.old")
        finally:
            files.delete(f"{aside}.new")

    def _write_by_spark(self, path: str) -> None:
        """Write with Spark, in one task that gets the files; this process cannot see what is at the path."""
        spark, mode = self.sparkSession, "overwrite" if self.shouldOverwrite else "error"
        files = {name: publish(spark, content) for name, content in self._stage._files().items()}
        rows = map_in_arrow(spark.range(0, 1, 1, 1), partial(_published, files), DDL)
        try:
            rows.write.mode(mode).parquet(f"{path}/data")
            self._write_parts(path)
            self._write_metadata(path, mode)
        except AnalysisException as error:
            if "PATH_ALREADY_EXISTS" not in str(error):
                raise
            raise DestinationError(_EXISTS.format(path)) from None

    def _write_parts(self, path: str) -> None:
        """Write the parts of the stage, each into a directory below `path`."""
        for name, part in self._stage._parts().items():
            writer = part.write()
            (writer.overwrite() if self.shouldOverwrite else writer).save(f"{path}/{name}")

    def _write_metadata(self, path: str, mode: str) -> None:
        given, unsaved = _without_secrets({param.name: value for param, value in self._stage._paramMap.items()})
        extra = {_VERSION: __version__, **unsaved, **self._stage._extra_metadata(), _PARTS: [*self._stage._parts()]}
        context = reader_context(self.sparkSession)
        text = DefaultParamsWriter._get_metadata_to_save(self._stage, context, extra, given)
        rows = self.sparkSession.createDataFrame([(text,)], "value string")
        rows.coalesce(1).write.mode(mode).text(f"{path}/metadata")


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
            HadoopFiles(spark, path)
        context = reader_context(spark)
        with whole(self._cls, path):
            metadata = DefaultParamsReader.loadMetadata(path, context)
            kind = metadata["class"]
            if kind.rpartition(".")[2] != self._cls.__name__:  # where it lay in the package does not matter
                raise ModelError(f"{path} holds a {kind}, not a {self._cls.__name__}. Load it with its class.")
            stage = restore(self._cls, metadata, _read(spark, path), path)
            parts = {name: f"{path}/{name}" for name in metadata.get(_PARTS, ())}
        stage._set_parts({n: DefaultParamsReader.loadParamsInstance(place, context) for n, place in parts.items()})
        return stage


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
    table = f"{path}/data"
    rows = _rows_by_spark(spark, table) if is_connect(spark) else HadoopFiles(spark, path).read_table(table)
    return joined(rows)


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


def metadata_of(stage: Any) -> dict[str, Any]:
    """A stage without its files and parts, for :func:`restore`; JSON-serializable."""
    return {
        "uid": stage.uid,
        _VERSION: __version__,
        "paramMap": {param.name: value for param, value in stage._paramMap.items()},
        "defaultParamMap": {param.name: value for param, value in stage._defaultParamMap.items()},
        **stage._extra_metadata(),
    }


def without_secrets(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The result of :func:`metadata_of` with the names in place of the values that may be secrets."""
    params, unsaved = _without_secrets(metadata["paramMap"])
    return {**metadata, "paramMap": params, **unsaved}


def _without_secrets(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Params without what everyone who can read the files could read, and for :func:`restore` the names of those."""
    saved = {name: without_credentials(value) for name, value in params.items() if name != _SECRET}
    lacking = sorted(name for name in saved if saved[name] != params[name])
    variables = ", ".join(sorted(params.get(_SECRET, ())))
    return saved, {_LACKING: [*lacking, f"{_SECRET} ({variables})"] if variables else lacking}


def restore(cls: type, metadata: dict[str, Any], files: Mapping[str, Content], path: str) -> Any:
    """A stage of a class, with the saved Params that it still has; a warning names `path` and the others."""
    stage = cls()
    stage._resetUid(metadata["uid"])
    saved = metadata.get(_VERSION)
    gone = [name for name in metadata["paramMap"] if not stage.hasParam(name)]
    if saved != __version__ or gone:
        note = f" It has Params that no longer exist: {gone}." if gone else ""
        warnings.warn(f"{path} was saved by tfos_ml {saved}; this is {__version__}.{note}", UserWarning, stacklevel=3)
    if lacking := metadata.get(_LACKING):
        warnings.warn(
            f"{path} was saved without the secrets that these Params may have: {', '.join(lacking)}. Set them again if "
            "the next fit needs them.",
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


def _published(files: Mapping[str, Artifact], _: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Published files as rows; runs on an executor."""
    return batches({name: artifact.parts() for name, artifact in files.items()})
