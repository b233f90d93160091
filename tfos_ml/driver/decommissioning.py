"""Notices that Spark decommissions an executor that runs a node of a fit (``spark.decommission.enabled``).

Other executors of the application may leave at any time, for instance idle ones under dynamic allocation.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tfos_ml.common.sessions import is_connect, is_local
from tfos_ml.common.timeouts import LOOK_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tfos_ml.driver.spark_job import SparkJob


class Decommissioning:
    """Looks whether executors of one job's tasks leave, at most every ``LOOK_SECONDS``."""

    def __init__(self, spark: SparkSession):
        self._spark = spark
        self._is_enabled = may_decommission(spark)
        self._executors: frozenset[str] = frozenset()  # those of the job, once all its tasks run
        self._looked = 0.0

    def reaches(self, job: SparkJob) -> str | None:
        """The id of an executor that runs a task of the job and is being decommissioned; None if none is known."""
        if not self._is_enabled or time.monotonic() - self._looked < LOOK_SECONDS:
            return None
        self._looked = time.monotonic()
        self._executors = self._executors or job.executors()
        return decommissioned(self._spark, self._executors)


def may_decommission(spark: SparkSession) -> bool:
    """Whether Spark decommissions executors of a session, and tells the driver."""
    if is_connect(spark) or is_local(spark):
        return False
    return str(spark.conf.get("spark.decommission.enabled", "false")).lower() == "true"


def decommissioned(spark: SparkSession, executors: frozenset[str]) -> str | None:
    """The first of some executors that Spark decommissions; one call of the JVM for each that does not leave."""
    if not executors or spark.sparkContext._jsc is None:
        return None
    context = spark.sparkContext._jsc.sc()
    backend, scheduler = context.schedulerBackend(), context.taskScheduler()
    for executor in sorted(executors):
        if not backend.isExecutorActive(executor) and scheduler.getExecutorDecommissionState(executor).isDefined():
            return executor
    return None
