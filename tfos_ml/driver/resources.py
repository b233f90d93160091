"""CPUs and GPUs of a node: stage-level scheduling of the job whose tasks are the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfos_ml.common.sessions import is_local
from tfos_ml.errors import ClusterConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AMOUNT = "spark.executor.resource.gpu.amount"


def make_profile(spark: SparkSession, cpus: int | None, gpus: int | None) -> Any:
    """The resource profile for tasks with so many CPUs and GPUs; None if Spark's own settings apply.

    Also None in local mode, where Spark has no such profiles. Raises ``ClusterConfigError`` if Spark assigns no, or too
    few, GPUs.
    See https://spark.apache.org/docs/latest/configuration.html#stage-level-scheduling-overview
    """
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    if gpus is not None:
        _check_gpus(spark, gpus)
    if (cpus is None and gpus is None) or is_local(spark):
        return None
    requests = TaskResourceRequests()
    if cpus is not None:
        requests = requests.cpus(cpus)
    if gpus is not None:
        requests = requests.resource("gpu", gpus)
    return ResourceProfileBuilder().require(requests).build


def _check_gpus(spark: SparkSession, gpus: int) -> None:
    if is_local(spark):
        raise ClusterConfigError(
            f"nodeGpus={gpus}, but a local session assigns no GPUs to tasks (master {spark.conf.get('spark.master')}). "
            "Unset nodeGpus: TensorFlow finds the GPUs of this host by itself."
        )
    amount = spark.conf.get(_AMOUNT, None) or "0"
    if amount.strip() == "0":
        raise ClusterConfigError(
            f"nodeGpus={gpus}, but Spark knows of no GPUs: {_AMOUNT} is not set. Start "
            "the session with it and with spark.executor.resource.gpu.discoveryScript, or unset nodeGpus."
        )
    if amount.strip().isdecimal() and int(amount) < gpus:
        raise ClusterConfigError(
            f"nodeGpus={gpus}, but an executor has only {_AMOUNT}={amount}. Lower nodeGpus, or start the session with "
            "more for each executor."
        )
