"""What a run asks of its Spark session. It asks once, before anything starts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfos_ml.agent.scorer import ScoringProcess
from tfos_ml.common import session_settings as settings
from tfos_ml.common.hadoop import default_fs, driver_places
from tfos_ml.common.sessions import is_connect, is_local
from tfos_ml.driver.preflight import allocates_dynamically, encryption_of
from tfos_ml.driver.progress import draws_stages
from tfos_ml.protocol.addresses import Endpoint, client_endpoint, driver_endpoint
from tfos_ml.protocol.grace_periods import GracePeriods
from tfos_ml.protocol.node_task import NodeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class SessionFacts:
    """The settings of a session, and what kind of session it is."""

    is_local: bool  # all tasks run in the driver's own process
    is_connect: bool  # a client of Spark Connect
    is_dynamic: bool  # Spark adds and removes executors
    draws_stages: bool  # Spark draws a bar of its own on the terminal
    endpoint: Endpoint  # where the driver listens
    lease: float  # seconds of silence after which a node gives up the driver, and the driver gives up a node
    idle_seconds: float  # that a fork server waits for its next request; 0: all processes are fresh interpreters
    fork_owner: int | None  # this process, if the nodes use its fork server, too
    grow_seconds: float  # between two checks whether an elastic fit could have more nodes
    node_ports: range
    grace_periods: GracePeriods
    node_settings: NodeSettings  # the defaults, with what the session says

    @classmethod
    def of(cls, spark: SparkSession, takes_port_variables: bool = False) -> SessionFacts:
        """Read a session; raises ``ClusterConfigError``. `takes_port_variables`: TensorFlowOnSpark's count, too."""
        is_far = is_connect(spark)
        return cls(
            is_local=is_local(spark) and not is_far,
            is_connect=is_far,
            is_dynamic=allocates_dynamically(spark),
            draws_stages=draws_stages(spark),
            endpoint=client_endpoint(spark) if is_far else driver_endpoint(spark, takes_port_variables),
            lease=settings.LEASE.of(spark),
            idle_seconds=settings.IDLE.of(spark),
            fork_owner=fork_owner(spark),
            grow_seconds=settings.GROW.of(spark),
            node_ports=settings.NODE_PORTS.of(spark),
            grace_periods=GracePeriods(
                worker=settings.WORKER_GRACE.of(spark), evaluator=settings.EVALUATOR_GRACE.of(spark)
            ),
            node_settings=node_settings(spark, takes_port_variables),
        )

    def absolute_path(self, path: str) -> str:
        """A path of the user's as all nodes understand it."""
        return self.node_settings.absolute_path(path)


def node_settings(spark: SparkSession, takes_port_variables: bool = False) -> NodeSettings:
    """The settings of nodes that a session has: its filesystem, the driver's directories, encryption, memory."""
    return NodeSettings(
        default_fs=default_fs(spark),
        encrypts=bool(encryption_of(spark)),
        allows_plaintext=settings.ALLOW_PLAINTEXT.of(spark),
        tensorboard_port=settings.TENSORBOARD_PORT.of(spark),
        takes_port_variables=takes_port_variables,
        spool_memory=settings.SPOOL_MEMORY.of(spark),
        shuffle_memory=settings.SHUFFLE_MEMORY.of(spark),
        **driver_places(spark),
    )


def fork_owner(spark: SparkSession) -> int | None:
    """This process, if the nodes use its fork server too, since they run on the same host as the same user."""
    return os.getpid() if is_local(spark) and not is_connect(spark) else None


def scoring_process(spark: SparkSession, model_bytes: int) -> ScoringProcess:
    """Which process scores rows, for a model of this size."""
    choice, idle = settings.SCORING_PROCESS.of(spark), settings.IDLE.of(spark)
    return ScoringProcess(choice, model_bytes, idle, fork_owner(spark))
