"""Replacements for what Spark before 4.1 lacks or names differently.

Features are detected, because platforms number Spark versions themselves. ``arrow_udf`` has a module of its own,
:mod:`tfos_ml.inference.arrow_udf`. All other code is written for the newest Spark.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from tfos_ml.common.sessions import is_connect

if TYPE_CHECKING:
    import threading

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_UNSIGNED = 0xFFFFFFFF
_warnings_lock = Lock()  # the filters of Python's warnings are the same in all threads


def repartition_by_id(df: DataFrame, partitions: int, number: Column) -> DataFrame:
    """Put each row into the partition whose number is in an int column; runs no job."""
    if hasattr(type(df), "repartitionById"):  # an attribute of the DataFrame itself might be a column
        return df.repartitionById(partitions, number)
    from pyspark.sql import functions as F  # a host that only serves a model has no pyspark

    keys = F.array(*map(F.lit, keys_of_partitions(partitions)))
    return df.repartition(partitions, F.element_at(keys, number.cast("int") + 1))


def keys_of_partitions(partitions: int) -> list[int]:
    """For each partition, the smallest int that Spark's hash partitioning puts there."""
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < partitions:
        keys.setdefault(_murmur3(key) % partitions, key)
        key += 1
    return [keys[number] for number in range(partitions)]


def _murmur3(value: int) -> int:
    """Murmur3 (x86, 32 bits) of one int with Spark's seed, signed: https://github.com/aappleby/smhasher/wiki."""
    mixed = value * 0xCC9E2D51 & _UNSIGNED
    mixed = _rotated(mixed, 15) * 0x1B873593 & _UNSIGNED
    mixed = _rotated(42 ^ mixed, 13) * 5 + 0xE6546B64 & _UNSIGNED
    mixed ^= 4  # bytes of an int
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = (mixed ^ mixed >> shift) * factor & _UNSIGNED
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _UNSIGNED


def map_in_arrow(
    df: DataFrame, function: Callable[..., Any], schema: Any, *, barrier: bool = False, profile: Any = None
) -> Any:
    """What ``DataFrame.mapInArrow`` returns; with a resource profile it may be an RDD of its rows."""
    with without_pandas_notice():
        return _mapped(df, function, schema, barrier, profile)


@contextmanager
def without_pandas_notice() -> Iterator[None]:
    """Within it, PySpark does not warn that pandas 3 is too new for it: nothing here uses pandas."""
    with _warnings_lock, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


def _mapped(df: DataFrame, function: Callable[..., Any], schema: Any, barrier: bool, profile: Any) -> Any:
    if profile is None:
        return df.mapInArrow(function, schema, barrier=barrier)
    if is_connect(df.sparkSession):
        _make_known(profile, df.sparkSession)
    if "profile" in inspect.signature(df.mapInArrow).parameters:
        return df.mapInArrow(function, schema, barrier=barrier, profile=profile)
    return df.mapInArrow(function, schema, barrier=barrier).rdd.withResources(profile)


def _make_known(profile: Any, spark: Any) -> None:
    """Register a resource profile with the Spark Connect server, which takes the thread's active session."""
    type(spark)._set_default_and_active_session(spark)
    assert profile.id is not None


def add_file(spark: SparkSession, path: str) -> None:
    """Send a file to the executors; since Spark 4.0, only to the tasks of this session."""
    if is_connect(spark):
        spark.addArtifacts(path, file=True)
        return
    try:
        spark.addArtifacts(path, file=True)
    except RuntimeError:  # before Spark 4.0: for Spark Connect only
        spark.sparkContext.addFile(path)


def session_thread(spark: SparkSession, target: Callable[[], object], name: str | None = None) -> threading.Thread:
    """A daemon thread whose jobs are those of a session, and have the properties of this thread's."""
    from pyspark import InheritableThread

    session = {"session": spark} if _takes_session() else {}
    return InheritableThread(target=target, name=name, daemon=True, **session)


def _takes_session() -> bool:
    """Whether threads inherit from a session, as since Spark 4.0."""
    from pyspark import InheritableThread

    return "session" in inspect.signature(InheritableThread.__init__).parameters


def inheriting(spark: SparkSession, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose jobs have the properties that this thread's have now, in whatever thread it is called."""
    from pyspark import inheritable_thread_target

    return inheritable_thread_target(spark)(function) if _takes_session() else inheritable_thread_target(function)


def reader_context(spark: SparkSession) -> Any:
    """The argument of ``DefaultParamsReader`` and ``DefaultParamsWriter``: the session, or its context."""
    import pyspark.ml.util

    return spark if hasattr(pyspark.ml.util, "try_remote_read") else spark.sparkContext


def arrow_table(df: DataFrame) -> pa.Table:
    """All rows of a DataFrame, as ``DataFrame.toArrow`` of Spark 4.0 has them."""
    if hasattr(type(df), "toArrow"):
        return df.toArrow()
    import pyarrow as pa

    classic: Any = df
    batches = classic._collect_as_arrow()
    return pa.Table.from_batches(batches) if batches else arrow_schema_of(df.schema).empty_table()


def struct_of(ddl: str) -> StructType:
    """The type that a schema string such as ``"id long, name string"`` names."""
    from pyspark.sql.types import StructType, _parse_datatype_string

    struct = StructType.fromDDL(ddl) if hasattr(StructType, "fromDDL") else _parse_datatype_string(ddl)
    assert isinstance(struct, StructType)
    return struct


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of record batches; types of users, as vectors, as what they consist of."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructField, StructType, UserDefinedType

    fields = [
        StructField(f.name, f.dataType.sqlType() if isinstance(f.dataType, UserDefinedType) else f.dataType, f.nullable)
        for f in schema
    ]
    return to_arrow_schema(StructType(fields))


def register_data_source(spark: SparkSession, source: Callable[[], Any]) -> bool:
    """Register a Python data source with a session; False before Spark 4.0, which has none."""
    if not hasattr(type(spark), "dataSource"):
        return False
    spark.dataSource.register(source())
    return True
