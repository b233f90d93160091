"""Checks of what programs pass to ``TFCluster`` and ``TFParallel``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.common.arguments import check_call
from tfos_ml.common.sessions import is_connect
from tfos_ml.stages.constraints import INPUT_MODE, SECONDS, names
from tfos_ml.stages.input_mode import InputMode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def check_arguments(input_mode: str, driver_ps_nodes: bool, queues: Sequence[str], reservation_timeout: float) -> None:
    """Raise ``ParamError`` if arguments of :meth:`TFCluster.run` are wrong, or do not go together."""
    INPUT_MODE.check("input_mode", input_mode)
    if driver_ps_nodes and input_mode != InputMode.TENSORFLOW:
        raise errors.ParamError("driver_ps_nodes=True needs input_mode=InputMode.TENSORFLOW")
    names("names of queues").check("queues", queues)
    SECONDS.check("reservation_timeout", reservation_timeout)
