"""What ``TFCluster`` and ``TFParallel`` share: programs that start their nodes themselves, without Params."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.common.arguments import check_call
from tfos_ml.common.sessions import is_connect
from tfos_ml.data.schema import FeedSchema
from tfos_ml.driver.session_facts import SessionFacts
from tfos_ml.protocol.artifacts import publish
from tfos_ml.protocol.node_task import NodeTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tfos_ml.protocol.cluster_template import ClusterTemplate
    from tfos_ml.protocol.settings import NodeSettings


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


def classic_session(sc: Any, program: str) -> SparkSession:
    """The classic session of a context; raises, in the name of ``TFCluster`` or ``TFParallel``, if there is none."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if isinstance(sc, SparkContext):
        return SparkSession(sc)
    if not hasattr(sc, "createDataFrame"):
        raise errors.ParamError(f"sc must be a SparkContext or a SparkSession. Got: {type(sc)}")
    if is_connect(sc):
        raise errors.ClusterConfigError(
            f"{program} needs a SparkContext, which Spark Connect does not have. Start a classic session "
            "(SparkSession.builder.master(...)), or use TFEstimator, which runs on Spark Connect too."
        )
    session: SparkSession = sc
    return session


def check_map_fun(map_fun: Any, name: str = "map_fun") -> None:
    """Raise ``ParamError``, which calls it by this name, if it is no function of two arguments."""
    if not callable(map_fun):
        raise errors.ParamError(f"{name} must be a function of (args, ctx). Received: {map_fun!r}")
    check_call(name, map_fun, "(args, ctx)", None, None)
