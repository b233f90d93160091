"""The Spark jobs for a snapshot: they write and count its rows, and compare them with those of a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tfos_ml.common.spark_api import map_in_arrow, repartition_by_id
from tfos_ml.data.arrow import to_storage
from tfos_ml.data.packed_lists import pack, slices
from tfos_ml.data.row_order import PARTITION_SHIFT, Int64s, round_robin_number
from tfos_ml.data.schema import ROW_COLUMN
from tfos_ml.data.snapshot_layout import StoredColumn
from tfos_ml.driver.job_errors import run_job
from tfos_ml.errors import EmptyDataError, SnapshotError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import DataType, StructType

ROW_GROUP_BYTES = 16 << 20


def write_rows(rows: DataFrame, path: str, buckets: int) -> Int64s:
    """Write numbered rows to a new directory with Spark; returns their count by source partition."""
    from pyspark.sql import functions as F

    spark, row = rows.sparkSession, F.col(ROW_COLUMN)
    partition, place = F.shiftright(row, PARTITION_SHIFT), row.bitwiseAND(F.lit((1 << PARTITION_SHIFT) - 1))
    by_bucket = repartition_by_id(rows, buckets, F.pmod(round_robin_number(row), F.lit(buckets)).cast("int"))
    options: dict[str, int | str] = {"parquet.block.size": ROW_GROUP_BYTES, "maxRecordsPerFile": 0}
    options |= {f"parquet.enable.dictionary#{path}": "false" for path in _paths_of_numbers(rows.schema)}

    def write() -> list[tuple[Any, ...]]:
        by_bucket.sortWithinPartitions(ROW_COLUMN).write.mode("overwrite").options(**options).parquet(path)
        by_partition = spark.read.schema(f"{ROW_COLUMN} bigint").parquet(path).groupBy(partition)
        return [tuple(row) for row in by_partition.agg(F.count("*"), F.max(place) + 1).collect()]

    groups = run_job(write, spark)
    if not groups:
        raise EmptyDataError("The DataFrame has no rows to train on. Check its filters and joins.")
    numbers, counts, ends = np.array(groups, np.int64).T
    if (counts != ends).any():
        raise SnapshotError(
            "Spark has computed a partition of the DataFrame twice, with different rows, so some are missing in "
            "the snapshot. Persist the DataFrame, or make its computation deterministic."
        )
    return np.bincount(numbers, counts).astype(np.int64)


def pack_lists(rows: DataFrame, columns: Sequence[StoredColumn]) -> DataFrame:
    """Numbered rows with their lists of numbers packed, which Spark then writes several times as fast."""
    from pyspark.sql.types import StructField, StructType

    packed = {f"c{i}" for i, column in enumerate(columns) if column.is_packed}
    if not packed:
        return rows
    fields = [
        StructField(field.name, _packed_type(field.dataType) if field.name in packed else field.dataType)
        for field in rows.schema.fields
    ]
    return map_in_arrow(rows, partial(_pack, packed), StructType(fields))


def _pack(packed: Set[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for part in slices(batch):
            columns = [
                pack(to_storage(column)) if name in packed else column
                for name, column in zip(part.schema.names, part.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, part.schema.names)


def _packed_type(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, BinaryType

    inner = kind.elementType if isinstance(kind, ArrayType) else None
    return ArrayType(_packed_type(inner)) if isinstance(inner, ArrayType) else BinaryType()


def _paths_of_numbers(schema: StructType) -> Iterator[str]:
    """Parquet's paths of columns in which few values are equal. With dictionaries of them, Spark takes much longer."""
    from pyspark.sql.types import ArrayType, BinaryType, DoubleType, FloatType

    for field in schema.fields:
        kind, path = field.dataType, field.name
        while isinstance(kind, ArrayType):
            kind, path = kind.elementType, f"{path}.list.element"
        if isinstance(kind, (BinaryType, DoubleType, FloatType)):
            yield path


def digest(rows: DataFrame, columns: Sequence[str]) -> tuple[Any, ...]:
    """The number of rows, and the sum of hashes of some columns, for any order of rows; raises errors of Spark jobs."""
    from pyspark.sql import functions as F

    sums = rows.agg(F.count("*"), F.sum(F.xxhash64(*columns).cast("decimal(20)")))
    row: Row | None = run_job(sums.first, rows.sparkSession)
    return tuple(row or ())
