"""What ``TFCluster`` and ``TFParallel`` share: programs that lead their nodes themselves, without Params."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.common.arguments import check_call
from tfos_ml.common.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESERVATION_TIMEOUT = 600.0
CLEANUP_TIMEOUT = 10.0
POLL_SECONDS = 0.1


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
