"""Plain functions that read and write TFRecords with any Spark, also without Python data sources."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.common.filesystems import StorageError
from tfos_ml.common.hadoop import store_settings
from tfos_ml.common.interpreter import use_own_python
from tfos_ml.common.redact import redact
from tfos_ml.common.sessions import is_connect
from tfos_ml.common.spark_api import map_in_arrow, register_data_source, struct_of
from tfos_ml.errors import ClusterConfigError, DestinationError, ParamError, TfosMlError
from tfos_ml.tfrecord.commit import APPEND, ERROR, IGNORE, OVERWRITE, abandon, commit, prepare
from tfos_ml.tfrecord.options import Options, parsed
from tfos_ml.tfrecord.plan import ReadPlan, plan_read, plan_write
from tfos_ml.tfrecord.writing import Destination, Written, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MODES = {ERROR: ERROR, "errorifexists": ERROR, APPEND: APPEND, OVERWRITE: OVERWRITE, IGNORE: IGNORE}
_STORE_FAILED = re.compile(rf"{StorageError.__name__}: (.*)")


def register(spark: SparkSession) -> None:
    """Register ``format("tfrecord")`` in a session, with the current ``fs.s3a.*`` settings of Hadoop.

    Parameters
    ----------
    spark : SparkSession
        Of Spark 4.0 or later, classic or Connect.

    Raises
    ------
    ClusterConfigError
        If this Spark has no Python data sources (before 4.0).

    Examples
    --------
    >>> from pyspark.sql import SparkSession
    >>> spark = SparkSession.builder.getOrCreate()
    >>> register(spark)
    >>> spark.range(3).write.format("tfrecord").mode("overwrite").save("/tmp/numbers")
    >>> spark.read.format("tfrecord").load("/tmp/numbers").count()
    3
    """

    def source() -> Any:
        from tfos_ml.tfrecord.data_source import with_stores

        return with_stores({} if is_connect(spark) else store_settings())

    if not register_data_source(spark, source):
        raise ClusterConfigError(
            f"Format 'tfrecord' needs the Python data sources of Spark 4.0; this is Spark {spark.version}. Use "
            "tfos_ml.tfrecord.load_tfrecords and save_as_tfrecords, which do the same."
        )


def save_as_tfrecords(
    df: DataFrame,
    path: str,
    *,
    mode: str = "error",
    partition_by: str | Sequence[str] = (),
    **options: Any,
) -> None:
    """Write a DataFrame as TFRecords: one file per task, and a file with the schema.

    Parameters
    ----------
    df : DataFrame
        With columns of integers, float, double, decimal, boolean, string, binary, arrays of these, and vectors.
    path : str
        A directory that all executors reach: a path, or a URI that ``pyarrow.fs`` understands.
    mode : {"error", "append", "overwrite", "ignore"}
        What to do if the directory is not empty.
    partition_by : str or list of str
        Columns whose values become directories, as ``name=value``.
    **options
        Options of the data source for writing: ``recordType``, ``codec``.

    Raises
    ------
    InvalidInputError
        Before a job starts: ``ColumnTypeError`` if a record cannot hold a column, ``DestinationError`` if the
        directory is not empty and `mode` is ``"error"``, ``ParamError`` if an option is wrong.
    NullValueError
        If an array contains a null. Nothing is written.
    DestinationError
        If the store fails.

    Examples
    --------
    >>> from pyspark.sql import SparkSession
    >>> spark = SparkSession.builder.getOrCreate()
    >>> save_as_tfrecords(spark.range(3), "/tmp/ids", mode="overwrite", codec="gzip")
    """
    if mode.lower() not in _MODES:
        raise ParamError(f"mode must be one of {', '.join(_MODES)}. Received: '{mode}'")
    how = _MODES[mode.lower()]
    checked = replace(_parsed(options), partition_by=tuple(_list(partition_by)))
    destination = plan_write(path, df.schema, checked, overwrite=how == OVERWRITE)
    if prepare(destination, how):
        write(df, destination)


def write(df: DataFrame, destination: Destination) -> None:
    """Write the rows of a DataFrame with a Spark job, and delete all files after an error.

    Raises ``DestinationError`` if the store fails. If the store also fails to delete the files, a marker file stays,
    and readers refuse the directory.
    """

    def run_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        try:
            written = write_rows(batches, destination, context.partitionId() if context else 0)
            outcome: dict[str, Any] = {"files": written.files, "rows": written.rows}
        except TfosMlError as error:  # which another attempt of the task would raise again
            outcome = {"error": type(error).__name__, "message": str(error)}
        yield pa.RecordBatch.from_pydict({"written": [json.dumps(outcome)]})

    use_own_python(df.sparkSession)
    try:
        reports = [json.loads(row.written) for row in map_in_arrow(df, run_task, "written string").collect()]
        for report in reports:
            if "error" in report:
                raise getattr(errors, report["error"])(report["message"])
        commit(destination, [Written(tuple(map(tuple, report["files"])), report["rows"]) for report in reports])
    except BaseException as error:
        with contextlib.suppress(OSError):  # if the store is unreachable
            abandon(destination)
        failed = _STORE_FAILED.search(str(error))
        if failed is None or isinstance(error, TfosMlError):
            raise
        raise DestinationError(f"TFRecords cannot be written to {redact(destination.uri)!r}: {failed[1]}") from None


def load_tfrecords(
    spark: SparkSession,
    path: str | Sequence[str],
    binary_features: Collection[str] = (),
    *,
    schema: StructType | str | None = None,
    **options: Any,
) -> DataFrame:
    """Read TFRecords as a DataFrame, with rows in the order of files and records.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.
    path : str or list of str
        Files, directories or patterns: paths, or URIs that ``pyarrow.fs`` understands.
    binary_features : collection of str
        Features to read as binary rather than as string, if the columns are inferred from records.
    schema : StructType or str, optional
        The columns to read. By default the schema file of the directory says them, or they are inferred from a sample
        of the records of each file.
    **options
        Options of the data source for reading: ``recordType``, ``codec``, ``sampleRecords``, ``maxPartitionBytes``.

    Returns
    -------
    DataFrame
        Evaluated lazily. A record that cannot be read fails the job with ``CorruptRecordError``.

    Raises
    ------
    EmptyDataError
        If `path` does not exist, or has no record from which to infer the columns.
    ColumnTypeError
        If a feature is bytes in some records and numbers in others, or a record cannot hold a column of the schema.
    DataError
        If the store fails, or the job that wrote the directory is not complete.

    Examples
    --------
    >>> from pyspark.sql import SparkSession
    >>> spark = SparkSession.builder.getOrCreate()
    >>> save_as_tfrecords(spark.range(3), "/tmp/ids", mode="overwrite")
    >>> load_tfrecords(spark, "/tmp/ids").count()
    3
    """
    given = struct_of(schema) if isinstance(schema, str) else schema
    return read(spark, plan_read(_list(path), _parsed(options, binary_features), given))


def read(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """The DataFrame of a plan."""

    def run_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from plan.read_files(plan.tasks[number])

    tasks = len(plan.tasks)
    use_own_python(spark)
    return map_in_arrow(spark.range(0, tasks, 1, max(tasks, 1)), run_task, plan.schema)


def infer_schema(path: str | Sequence[str], binary_features: Collection[str] = (), **options: Any) -> StructType:
    """The schema of the DataFrame that :func:`load_tfrecords` returns; runs no job.

    Parameters
    ----------
    path : str or list of str
        Files, directories or patterns.
    binary_features : collection of str
        Features to read as binary rather than as string.
    **options
        As for :func:`load_tfrecords`.

    Returns
    -------
    StructType

    Raises
    ------
    EmptyDataError
        If there is no record from which to infer the columns.
    """
    return plan_read(_list(path), _parsed(options, binary_features), None).schema


def _list(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _parsed(options: dict[str, Any], binary_features: Collection[str] = ()) -> Options:
    """Options from keyword arguments, whose names may have underscores."""
    texts = {key.replace("_", ""): str(value) for key, value in options.items() if value is not None}
    return replace(parsed(texts), binary_features=tuple(binary_features))
