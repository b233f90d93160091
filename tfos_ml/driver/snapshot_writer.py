"""The Spark jobs for a snapshot: they write and count its rows, and compare them with those of a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfos_ml.common.spark_api import repartition_by_id
from tfos_ml.data.order import PARTITION_SHIFT, Int64s, round_robin_number
from tfos_ml.data.schema import ROW_COLUMN
from tfos_ml.driver.job_errors import typed_error
from tfos_ml.errors import EmptyDataError, SnapshotError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

ROW_GROUP_BYTES = 16 << 20


def write_rows(rows: DataFrame, path: str, buckets: int) -> Int64s:
    """Write numbered rows to a new directory with Spark; returns their count by source partition.

    Raises ``EmptyDataError`` if there are none, ``SnapshotError`` if some are missing, and errors of Spark jobs.
    """
    from pyspark.sql import functions as F

    spark, row = rows.sparkSession, F.col(ROW_COLUMN)
    partition, place = F.shiftright(row, PARTITION_SHIFT), row.bitwiseAND(F.lit((1 << PARTITION_SHIFT) - 1))
    try:
        by_bucket = repartition_by_id(rows, buckets, F.pmod(round_robin_number(row), F.lit(buckets)).cast("int"))
        options: dict[str, int | str] = {"parquet.block.size": ROW_GROUP_BYTES, "maxRecordsPerFile": 0}
        options |= {f"parquet.enable.dictionary#{path}": "false" for path in _paths_of_floats(rows.schema)}
        by_bucket.sortWithinPartitions(ROW_COLUMN).write.options(**options).parquet(path)
        by_partition = spark.read.schema(f"{ROW_COLUMN} bigint").parquet(path).groupBy(partition)
        groups = [tuple(row) for row in by_partition.agg(F.count("*"), F.max(place) + 1).collect()]
    except Exception as error:  # Spark's
        raise typed_error(error, spark) from None
    if not groups:
        raise EmptyDataError("The DataFrame has no rows to train on. Check its filters and joins.")
    numbers, counts, ends = np.array(groups, np.int64).T
    if (counts != ends).any():
        raise SnapshotError(
            "Spark has computed a partition of the DataFrame twice, with different rows, so some are missing in "
            "the snapshot. Persist the DataFrame, or make its computation deterministic."
        )
    return np.bincount(numbers, counts).astype(np.int64)


def _paths_of_floats(kind: DataType, path: str = "") -> Iterator[str]:
    """Parquet's paths of all floats in a type. With dictionaries of them, Spark takes 1.5 times as long to write."""
    from pyspark.sql import types

    if isinstance(kind, types.UserDefinedType):
        kind = kind.sqlType()
    if isinstance(kind, types.StructType):
        for field in kind.fields:
            yield from _paths_of_floats(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, types.ArrayType):
        yield from _paths_of_floats(kind.elementType, f"{path}.list.element")
    elif isinstance(kind, (types.FloatType, types.DoubleType)):
        yield path


def digest(rows: DataFrame, columns: Sequence[str]) -> tuple[Any, ...]:
    """The number of rows, and the sum of hashes of some columns, for any order of rows; raises errors of Spark jobs."""
    from pyspark.sql import functions as F

    hashed = F.xxhash64(*columns).cast("decimal(20)")
    try:
        return tuple(rows.agg(F.count("*"), F.sum(hashed)).first() or ())
    except Exception as error:  # Spark's
        raise typed_error(error, rows.sparkSession) from None
