"""Checks the Spark session before a cluster starts, and names settings that would break the run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tfos_ml.common.packed_environment import check_archives
from tfos_ml.common.session_settings import ALLOW_PLAINTEXT, parse_bytes
from tfos_ml.common.sessions import is_connect, is_local
from tfos_ml.errors import ClusterConfigError, NotEnoughSlotsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_PYSPARK_MEMORY = 4 << 30  # measured: TensorFlow 2.21 aborts under an address-space limit of 2 GiB, runs under 3
_ENCRYPTION = ("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled")
_FILES = "spark.io.encryption.enabled"
_REGISTRATION = "spark.scheduler.maxRegisteredResourcesWaitingTime"


def check_settings(spark: SparkSession, *, barrier: bool = True, uses_grpc: bool = True) -> None:
    """Refuse Spark settings under which a job with TensorFlow processes cannot run.

    `barrier` is whether the nodes start in a barrier job if Spark allows that, and `uses_grpc` whether they connect to
    each other through TensorFlow, which has no encryption. Raises ``ClusterConfigError``, which
    names the setting, its value and what to set.
    """
    if allocates_dynamically(spark) or not barrier:
        if is_connect(spark):
            raise ClusterConfigError(
                "spark.dynamicAllocation.enabled=true: Spark refuses barrier jobs under dynamic allocation "
                "(SPARK-24942), and on Spark Connect the nodes cannot meet at the driver instead. Start the server "
                "with spark.dynamicAllocation.enabled=false and a fixed spark.executor.instances."
            )
        if _is_true(spark, "spark.speculation"):
            raise ClusterConfigError(
                "spark.speculation=true would start slow nodes a second time. Set it to false, or "
                "spark.dynamicAllocation.enabled=false: Spark does not speculate with barrier jobs."
            )
    check_archives(_conf(spark, "spark.archives", ""))
    _check_encryption(spark, uses_grpc)
    memory = _conf(spark, "spark.executor.pyspark.memory", "")
    if memory and parse_bytes(memory, "m") < MIN_PYSPARK_MEMORY:
        raise ClusterConfigError(
            f"spark.executor.pyspark.memory={memory} limits the address space of each node, and TensorFlow aborts "
            f"below about 3 GiB. Unset it, or set it to {MIN_PYSPARK_MEMORY >> 30}g or more."
        )
    idle = "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"
    kill = "spark.sql.execution.pyspark.udf.killOnIdleTimeout"
    if _is_true(spark, kill) and float(_conf(spark, idle, "0").rstrip("s") or 0) > 0:
        raise ClusterConfigError(
            f"{kill}=true with {idle}={_conf(spark, idle, '0')} would kill nodes while they train, since they return "
            f"rows only at the end. Set {kill}=false."
        )


def allocates_dynamically(spark: SparkSession) -> bool:
    """Whether Spark adds and removes executors; it then refuses barrier jobs."""
    return _is_true(spark, "spark.dynamicAllocation.enabled") and not is_local(spark)


def encryption_of(spark: SparkSession) -> list[str]:
    """The settings with which Spark encrypts data between hosts; empty for a local session, which has one host."""
    return [name for name in _ENCRYPTION if not is_local(spark) and _is_true(spark, name)]


def _check_encryption(spark: SparkSession, uses_grpc: bool) -> None:
    """Refuse to send or store in plain text what Spark itself is set to encrypt."""
    if ALLOW_PLAINTEXT.of(spark):
        return
    if _is_true(spark, _FILES):
        raise ClusterConfigError(
            f"{_FILES}=true encrypts Spark's temporary files, but until the nodes end, their rows are stored in plain "
            "text in the hosts' shared memory (/dev/shm) and local directories, readable by this user and root. "
            f"If that is acceptable, start the session with {ALLOW_PLAINTEXT}=true."
        )
    set_names = encryption_of(spark) if uses_grpc else []
    if set_names:
        raise ClusterConfigError(
            f"{set_names[0]}=true encrypts Spark's traffic, but TensorFlow's gRPC between nodes cannot be encrypted. "
            "Use KerasEstimator with communication='auto' (the default) on CPUs, or a cluster of one node: they do "
            "without gRPC, and all that they send is encrypted. Or, if the network between the executors is trusted, "
            f"start the session with {ALLOW_PLAINTEXT}=true."
        )


def check_slots(
    spark: SparkSession,
    needed: int,
    timeout: float,
    profile: Any = None,
    *,
    name: str = "clusterSize",
    advice: str = "Lower clusterSize or nodeCpus",
    after_loss: bool = False,
) -> None:
    """Raise ``NotEnoughSlotsError`` if Spark has too few task slots for the cluster.

    If the settings say how many executors there will be, wait for those that have not registered yet, at most `timeout`
    seconds. If not, wait as long as executors may still register:
    ``spark.scheduler.maxRegisteredResourcesWaitingTime`` after the latest, or after the application began. With
    `after_loss` (a node has been lost), a standalone cluster gets the same time from now on; other cluster managers
    replace executors. On Spark Connect slots cannot be counted, and nothing is checked. The error names the argument
    that requires so many slots, and what to change.
    """
    if is_connect(spark):
        return
    promised = _promised_slots(spark, profile)
    if allocates_dynamically(spark) and (promised is None or needed <= promised):
        return  # Spark starts executors once tasks wait for them
    available = registered_slots(spark, profile)
    since, deadline = _started_at(spark), time.monotonic() + timeout
    if after_loss:
        since = time.monotonic()
        promised = promised if is_local(spark) or not _is_standalone(spark) else None
    while available < needed and time.monotonic() < deadline:
        is_settled = promised is None and time.monotonic() - since > _registration_timeout(spark)
        if is_settled or (promised is not None and promised < needed):
            break
        time.sleep(0.2)
        registered = registered_slots(spark, profile)
        available, since = registered, since if registered == available else time.monotonic()
    if available < needed:
        waited = "" if promised is not None else f", after {_REGISTRATION}={_registration_timeout(spark):g} s"
        has = available if promised is None or promised >= needed else max(available, promised)
        raise NotEnoughSlotsError(
            f"{name}={needed} needs {needed} task slots at once, but Spark has {has} "
            f"(master {spark.sparkContext.master}, CPUs a node: {_task_cpus(spark, profile)}{waited}). "
            f"{advice}, or start the session with more cores, for instance "
            f".master('local[{needed}]') or more executors."
        )


def _started_at(spark: SparkSession) -> float:
    """When the Spark application began, by the clock of ``time.monotonic``."""
    return time.monotonic() - max(0.0, time.time() - spark.sparkContext.startTime / 1000)


def _registration_timeout(spark: SparkSession) -> float:
    """Seconds after which Spark itself no longer waits for executors to register."""
    conf = spark.sparkContext._jsc.sc().conf()
    return float(conf.getTimeAsSeconds(_REGISTRATION, "30s"))


def registered_slots(spark: SparkSession, profile: Any = None) -> int:
    """How many tasks of a resource profile the registered executors of a classic session can run at once."""
    jsc = spark.sparkContext._jsc.sc()
    profiles = jsc.resourceProfileManager()
    wanted = profiles.defaultResourceProfile() if profile is None else profile._java_resource_profile
    profiles.addResourceProfile(wanted)  # as the job will; Spark counts for those it knows
    return int(jsc.maxNumConcurrentTasks(wanted))


def _task_cpus(spark: SparkSession, profile: Any) -> int:
    requests = {} if profile is None else profile.taskResources
    return int(requests["cpus"].amount if "cpus" in requests else _conf(spark, "spark.task.cpus", "1"))


def _promised_slots(spark: SparkSession, profile: Any) -> int | None:
    """The number of slots once all executors have registered; None if no setting says so, as on many clusters."""
    master = spark.sparkContext.master or ""
    cores = int(_conf(spark, "spark.executor.cores", "0" if _is_standalone(spark) else "1"))
    if master.startswith("local-cluster["):
        executors, cores, _ = (int(n) for n in master[len("local-cluster[") : -1].split(","))
        executors = min(executors, int(_conf(spark, "spark.dynamicAllocation.maxExecutors", str(executors))))
    elif allocates_dynamically(spark):
        executors = int(_conf(spark, "spark.dynamicAllocation.maxExecutors", str(2**31 - 1)))
    elif is_local(spark):
        return 0  # all are there
    elif _conf(spark, "spark.cores.max", ""):
        return int(_conf(spark, "spark.cores.max", "")) // _task_cpus(spark, profile)
    elif _conf(spark, "spark.executor.instances", ""):
        executors = int(_conf(spark, "spark.executor.instances", ""))
    else:
        return None
    if not cores:
        return None  # an executor has all cores of its worker
    return executors * (cores // _task_cpus(spark, profile))


def _is_standalone(spark: SparkSession) -> bool:
    """Whether Spark's own cluster manager runs the executors; it cannot replace a lost worker."""
    return (spark.sparkContext.master or "").startswith(("spark://", "local-cluster["))


def _conf(spark: SparkSession, name: str, default: str) -> str:
    value = spark.conf.get(name, default)
    return default if value is None else value


def _is_true(spark: SparkSession, name: str) -> bool:
    return _conf(spark, name, "false").lower() == "true"
