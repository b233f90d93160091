"""The driver's side of ``TFCluster.train`` and ``.inference``: Spark jobs that feed rows to the nodes of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.agent.feed_task import (
    FED_SCHEMA,
    FeedNode,
    FeedSpec,
    feed_batches,
    feed_elements,
    infer_batches,
    infer_elements,
)
from tfos_ml.common.session_settings import LEASE
from tfos_ml.common.spark_api import map_in_arrow, struct_of
from tfos_ml.common.timeouts import CLEANUP_SECONDS, FEED_END_SECONDS, LEASE_SECONDS, POLL_SECONDS
from tfos_ml.data import schema
from tfos_ml.driver.partitions import check_rows
from tfos_ml.driver.run import Run
from tfos_ml.protocol.control_messages import TrainCall

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class Feeding:
    """Feeds those nodes of a run that take rows, once all have started; for several threads."""

    def __init__(self, run: Run, nodes: tuple[FeedNode, ...]):
        self._run = run
        self._control = run.control
        self._nodes = nodes
        self._numbers = count(1)
        self._lease = run.task.lease or LEASE_SECONDS

    def train(self, data: Any, epochs: int, feed_timeout: float, stream: str) -> None:
        """Feed an RDD or DataFrame, and return once it has been read; errors as of ``TFCluster.train``."""
        self._run.check()
        spec = self._spec(stream, feed_timeout, epochs)
        action = train_action(data, spec)
        feeds, nodes = self._control.feeds, self._control.nodes
        feeds.open(spec.number, {node.rank: node.host for node in self._nodes})
        try:
            job = self._run.start_job(action)
            try:
                fed = self._run.wait(job, FEED_END_SECONDS)
            except BaseException:
                job.cancel(CLEANUP_SECONDS)
                raise
            self._check_fed(fed, spec.number)
        finally:
            feeds.close(spec.number)
        announcement = nodes.announce(TrainCall(stream, spec.number, epochs, float(feed_timeout)))
        ranks = tuple(node.rank for node in self._nodes)
        while not nodes.have_read(ranks, announcement, spec.number, POLL_SECONDS):
            self._run.check()

    def infer(self, data: Any, feed_timeout: float, stream: str, results: str) -> Any:
        """The RDD or DataFrame of results; raises as :func:`train_action`."""
        spec = self._spec(stream, feed_timeout)
        if not hasattr(data, "mapInArrow"):
            _check_rdd(data)
            return data.mapPartitionsWithIndex(partial(infer_elements, spec))
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        added = _result_columns(results, data)
        _feedable(data)  # for its checks
        whole = StructType([*data.schema.fields, *added.fields])
        return map_in_arrow(data, partial(infer_batches, spec, to_arrow_schema(added)), whole)

    def _spec(self, stream: str, feed_timeout: float, epochs: int = 1) -> FeedSpec:
        number = next(self._numbers)
        return FeedSpec(number, stream, self._nodes, self._control.address, epochs, self._lease, feed_timeout)

    def _check_fed(self, fed: Mapping[int, int | None], number: int) -> None:
        """Raise unless nodes have taken over just the rows that feed tasks have read, but those that none wanted."""
        deadline = time.monotonic() + self._lease
        while (committed := self._control.feeds.committed(number, POLL_SECONDS)) is None:
            self._run.check()
            if time.monotonic() > deadline:
                raise errors.InputLostError(
                    f"Some nodes have not said within {LEASE}={self._lease:g} s whether they have taken over "
                    "rows that were granted to them. Shut the cluster down, and see their logs."
                )
        check_rows({partition: rows for partition, rows in fed.items() if rows is not None}, committed)


def train_action(data: Any, spec: FeedSpec) -> Callable[[], dict[int, int | None]]:
    """Runs the job that feeds rows for training. Its result is the count by partition, None where none were wanted.

    Raises ``ParamError`` if `data` is neither RDD nor DataFrame, ``ColumnTypeError`` if no tensor can hold a column.
    """
    if hasattr(data, "mapInArrow"):
        frames = map_in_arrow(_feedable(data), partial(feed_batches, spec), FED_SCHEMA)
        return lambda: {row.partition: row.rows for row in frames.collect()}
    _check_rdd(data)
    counts = data.mapPartitionsWithIndex(partial(feed_elements, spec))
    return lambda: dict(counts.collect())


def _result_columns(results: str, df: DataFrame) -> StructType:
    """The columns of a DDL schema; raises ``ParamError`` if the results of a DataFrame's rows cannot be so."""
    added = struct_of(results)
    if not added.fields:
        raise errors.ParamError("schema: it has no columns for the results. Got: ''. Use 'prediction double' or so.")
    twice = sorted(set(added.names) & set(df.columns))
    if twice:
        raise errors.ParamError(f"schema: the DataFrame has columns {twice} already. Choose other names for results.")
    return added


def _feedable(df: DataFrame) -> DataFrame:
    """All columns, as Arrow carries them best."""
    specs = [schema.column_spec(df.schema, name, name, "feature") for name in df.columns]
    return df.select(*(schema.spark_column(spec, df, spec.dtype).alias(spec.name) for spec in specs))


def _check_rdd(data: Any) -> None:
    if not hasattr(data, "mapPartitionsWithIndex"):
        raise errors.ParamError(f"Rows must be an RDD or a DataFrame (or a DStream for training). Got: {type(data)}")
