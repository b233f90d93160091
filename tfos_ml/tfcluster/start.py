"""Starts the nodes of a ``TFCluster`` or ``TFParallel``, and waits until those of a cluster have met."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.agent.node_identity import NodeInfo, read_infos
from tfos_ml.agent.standalone_supervisor import start_node
from tfos_ml.common.timeouts import POLL_SECONDS, TENSORBOARD_SECONDS
from tfos_ml.data.schema import FeedSchema
from tfos_ml.driver.executor_check import check_executors
from tfos_ml.driver.preflight import check_settings, check_slots
from tfos_ml.driver.run import Run, gather_lock
from tfos_ml.driver.session_facts import SessionFacts
from tfos_ml.protocol.artifacts import publish
from tfos_ml.protocol.cluster_template import ClusterTemplate
from tfos_ml.protocol.node_task import NodeSettings, NodeTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_spark(spark: SparkSession, num_executors: int, on_driver: int, timeout: float) -> None:
    """Raise, in terms of ``TFCluster.run``'s arguments, if settings, slots or executors do not allow the cluster."""
    check_settings(spark, barrier=False, uses_grpc=num_executors > 1)
    name = "num_executors - num_ps" if on_driver else "num_executors"
    check_slots(spark, num_executors - on_driver, timeout, name=name, advice="Lower num_executors")
    check_executors(spark, num_executors)


def make_task(
    spark: SparkSession,
    facts: SessionFacts,
    template: ClusterTemplate,
    program: bytes,
    settings: NodeSettings,
    **others: Any,
) -> NodeTask:
    """What the nodes of a program do, which gets no rows from its job; `others` are more fields."""
    return NodeTask(
        run_id=uuid.uuid4().hex[:12],
        template=template,
        schema=FeedSchema(()),
        payload=publish(spark, program),
        settings=settings,
        environment={},
        export_dir=None,
        control=None,
        lease=facts.lease,
        node_ports=facts.node_ports,
        shares_console=facts.is_local,
        idle_seconds=facts.idle_seconds,
        fork_owner=facts.fork_owner,
        **others,
    )


def start_nodes(run: Run, program: bytes, is_fed: bool) -> list[NodeInfo]:
    """Start all nodes, some of them on the driver's host; returns what they say of themselves.

    Nodes that are fed hold no task slot when this returns.
    """
    numbers = range(run.task.driver_nodes, run.task.template.size)
    ranks = run.spark.sparkContext.parallelize(numbers, len(numbers))
    with gather_lock:
        start = partial(ranks.foreach, partial(start_node, run.task, is_fed))
        job = run.start(start, program if run.task.driver_nodes else None)
        run.gather(job)
        if is_fed or run.missing():
            run.wait(job)
        return read_infos([info for _, info in sorted(run.control.all_gather.first().items())])


def await_tensorboard(run: Run) -> str:
    """URL of the chief's TensorBoard; raises ``ReservationTimeoutError`` if it does not start, or as ``Run.check``."""
    nodes, chief_rank = run.control.nodes, run.task.template.chief_rank
    deadline = time.monotonic() + TENSORBOARD_SECONDS
    while True:
        chief = nodes.progress().get(chief_rank)
        if chief is not None and chief.tensorboard is not None:
            return chief.tensorboard
        run.check()
        if all(node.rank != chief_rank for node in nodes.unfinished()):
            raise errors.ReservationTimeoutError(
                "The chief has ended before its TensorBoard had started. Its event files stay in ctx.log_dir; "
                "set log_dir to choose where, and start tensorboard --logdir there."
            )
        if time.monotonic() > deadline:
            raise errors.ReservationTimeoutError(f"TensorBoard has not started within {TENSORBOARD_SECONDS:g} s.")
        time.sleep(POLL_SECONDS)
