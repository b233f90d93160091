"""The Spark jobs that bring the rows of an RDD or DataFrame to the nodes of a ``TFCluster``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.agent.feed_task import (
    FED_SCHEMA,
    FeedSpec,
    feed_batches,
    feed_elements,
    infer_batches,
    infer_elements,
)
from tfos_ml.common.spark_api import map_in_arrow, struct_of
from tfos_ml.data import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def is_dataframe(data: Any) -> bool:
    """Whether it is a DataFrame rather than an RDD."""
    return hasattr(data, "mapInArrow")


def feeding(data: Any, spec: FeedSpec) -> Callable[[], dict[int, int | None]]:
    """The job that feeds rows for training. Its result is the count by partition, None where none were wanted.

    Raises ``ParamError`` if `data` is neither RDD nor DataFrame, ``ColumnTypeError`` if no tensor can hold a column.
    """
    if is_dataframe(data):
        frames = map_in_arrow(_feedable(data), partial(feed_batches, spec), FED_SCHEMA)
        return lambda: {row.partition: row.rows for row in frames.collect()}
    _check_rdd(data)
    counts = data.mapPartitionsWithIndex(partial(feed_elements, spec))
    return lambda: dict(counts.collect())


def inferring(data: Any, spec: FeedSpec, results: str) -> Any:
    """The RDD or DataFrame of results; raises as :func:`feeding`."""
    if not is_dataframe(data):
        _check_rdd(data)
        return data.mapPartitionsWithIndex(partial(infer_elements, spec))
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    added = struct_of(results)
    if not added.fields:
        raise errors.ParamError("schema: it has no columns for the results. Got: ''. Use 'prediction double' or so.")
    twice = sorted(set(added.names) & set(data.columns))
    if twice:
        raise errors.ParamError(f"schema: the DataFrame has columns {twice} already. Choose other names for results.")
    _feedable(data)  # for its checks
    whole = StructType([*data.schema.fields, *added.fields])
    return map_in_arrow(data, partial(infer_batches, spec, to_arrow_schema(added)), whole)


def _feedable(df: DataFrame) -> DataFrame:
    """All columns, as Arrow carries them best."""
    specs = [schema.column_spec(df.schema, name, name, "feature") for name in df.columns]
    return df.select(*(schema.spark_column(spec, df, spec.dtype).alias(spec.name) for spec in specs))


def _check_rdd(data: Any) -> None:
    if not hasattr(data, "mapPartitionsWithIndex"):
        raise errors.ParamError(f"Rows must be an RDD or a DataFrame (or a DStream for training). Got: {type(data)}")
