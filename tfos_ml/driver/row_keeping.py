"""Rows that several fits share: the first leaves them on the hosts of its nodes, where the next ones find them.

The nodes of a next fit are put on the hosts that have their rows (:mod:`tfos_ml.data.kept_rows`), and take nothing from
Spark. Where that does not succeed, Spark feeds the rows once more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tfos_ml.common.sessions import is_connect, is_local
from tfos_ml.common.spark_api import one_row_a_host
from tfos_ml.data import kept_rows
from tfos_ml.data.schema import FeedSchema
from tfos_ml.driver.fit import RunResult
from tfos_ml.driver.preflight import registered_slots
from tfos_ml.driver.spark_job import SparkJob
from tfos_ml.errors import KeptRowsLostError
from tfos_ml.protocol.node_task import NodeTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)
RELEASE_SECONDS = 20.0
_TASKS_OF_CLIENTS = 64  # of Spark Connect, which do not know how many slots there are
Run = Callable[[Callable[[], "DataFrame"], NodeTask], RunResult]


@dataclass
class _Shared:
    """Rows of fits that have the same plan and columns, on clusters of one kind."""

    rows: DataFrame
    columns: FeedSchema
    key: str = ""  # of the fit that keeps them, or has kept them
    hosts: tuple[str, ...] | None = None  # that have them, by rank
    is_lost: bool = False  # a node did not find them

    def are_those(self, rows: DataFrame, columns: FeedSchema) -> bool:
        """Whether they are the rows of a plan."""
        return self.columns == columns and self.rows.sameSemantics(rows)


class RowKeeping:
    """The rows of the fits of one search; for several threads."""

    def __init__(self, spark: SparkSession):
        self._spark = spark
        self._shared: list[_Shared] = []
        self._keys: list[str] = []
        self._lock = threading.Lock()

    def launch(self, rows: Callable[[], DataFrame], task: NodeTask, run: Run) -> RunResult:
        """Run a cluster by ``run(rows, task)``: on rows that lie on the hosts, else on those of Spark.

        `rows` makes the DataFrame of the rows by node. Of fits under way on the same rows one keeps them. Raises what
        `run` raises.
        """
        with self._lock:
            shared = self._find(rows(), task)
            hosts = shared.hosts
        if hosts is not None:
            kept = replace(task, kept_rows=shared.key, rows_are_kept=True)
            try:
                return run(partial(one_row_a_host, self._spark, hosts), kept)
            except KeptRowsLostError as error:
                logger.info("%s", error)
                shared.hosts, shared.is_lost = None, True
        key = self._claim(shared)
        result = None
        try:
            result = run(rows, replace(task, kept_rows=key))
            return result
        finally:
            if key:
                self._settle(shared, result)

    def _find(self, rows: DataFrame, task: NodeTask) -> _Shared:
        for shared in self._shared:
            if shared.are_those(rows, task.schema):
                return shared
        self._shared.append(_Shared(rows, task.schema))
        return self._shared[-1]

    def _claim(self, shared: _Shared) -> str:
        """A name for the rows of a fit that is to keep them; none if another one does, or they do not stay."""
        with self._lock:
            if shared.key or shared.is_lost:
                return ""
            shared.key = kept_rows.new_key()
            self._keys.append(shared.key)
            return shared.key

    def _settle(self, shared: _Shared, result: RunResult | None) -> None:
        with self._lock:
            if result is None or not all(report["keeps_rows"] for report in result.reports):
                shared.key = ""
                return
            hosts = tuple(report["address"].rpartition(":")[0] for report in result.reports)
            if is_connect(self._spark) and len(set(hosts)) > 1:  # a client cannot say which node goes where
                shared.is_lost = True
            else:
                shared.hosts = hosts

    def release(self) -> None:
        """Have the hosts remove the rows; where that is not possible now, fork servers do later. Raises nothing."""
        if not self._keys:
            return
        try:
            self._remove(self._keys)
        except Exception as error:  # the session has been stopped, say
            logger.info("Kept rows could not be removed: %s", error)

    def _remove(self, keys: Sequence[str]) -> None:
        if not is_connect(self._spark) and is_local(self._spark):
            kept_rows.remove(keys)
            return
        tasks = _TASKS_OF_CLIENTS if is_connect(self._spark) else max(1, registered_slots(self._spark))
        removed = self._spark.range(0, tasks, 1, tasks).mapInArrow(partial(_remove_here, keys), "removed boolean")
        job = SparkJob(self._spark, f"tfos_ml-release-{keys[0]}", removed.collect)
        if not job.wait(RELEASE_SECONDS):
            job.cancel(RELEASE_SECONDS)


def _remove_here(keys: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does on its host."""
    kept_rows.remove(keys)
    for batch in batches:
        yield pa.record_batch([pa.array([True] * batch.num_rows)], ["removed"])
