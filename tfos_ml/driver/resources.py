"""CPUs and GPUs of a node: stage-level scheduling of the job whose tasks are the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfos_ml.common.sessions import is_local
from tfos_ml.errors import ClusterConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_profile(spark: SparkSession, cpus: int | None, gpus: int | None) -> Any:
    """The resource profile for tasks with so many CPUs and GPUs; None if Spark's own settings apply.

    Also None in local mode, where Spark has no such profiles. Raises ``ClusterConfigError`` if Spark knows of no GPUs.
    See https://spark.apache.org/docs/latest/configuration.html#stage-level-scheduling-overview
    """
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    if (cpus is None and gpus is None) or is_local(spark):
        return None
    requests = TaskResourceRequests()
    if cpus is not None:
        requests = requests.cpus(cpus)
    if gpus is not None:
        if not spark.conf.get("spark.executor.resource.gpu.amount", None):
            raise ClusterConfigError(
                f"nodeGpus={gpus}, but Spark knows of no GPUs: spark.executor.resource.gpu.amount is not set. Start "
                "the session with it and with spark.executor.resource.gpu.discoveryScript, or unset nodeGpus."
            )
        requests = requests.resource("gpu", gpus)
    return ResourceProfileBuilder().require(requests).build
