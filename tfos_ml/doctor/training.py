"""Two nodes that meet and reach each other, and a tiny fit with its transform: what users run, only smaller."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from tfos_ml.common.redact import redact
from tfos_ml.doctor.deadline import PREFIX, OutOfTimeError
from tfos_ml.doctor.finding import Finding, failed, ok
from tfos_ml.driver.spark_job import SparkJob
from tfos_ml.errors import MissingPackageError, ReservationTimeoutError, TfosMlError
from tfos_ml.stages.estimator import TFEstimator
from tfos_ml.stages.keras_estimator import KerasEstimator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tfos_ml.worker.context import NodeContext

MEETING_SECONDS, FIT_SECONDS, CANCEL_SECONDS = 20.0, 40.0, 3.0
PEER_SECONDS = 5.0
ROWS = 32
_PORTS = "Let the executors reach each other: on the ports of spark.tfos_ml.nodePorts (40000-40099, say), or on all."
_SLOW = "Do other jobs hold the slots, or is the host slow? --seconds gives all checks more time together."
_ELSE = "Follow the message; the executors' logs have all."


def check_meeting(spark: SparkSession, nodes: int, left: Callable[[float], float]) -> list[Finding]:
    """Whether so many nodes start at once, meet, and reach each other on their ports."""
    check = f"{nodes} nodes meet"
    seconds = left(MEETING_SECONDS)
    rows = spark.range(0, nodes, 1, nodes).withColumnRenamed("id", "features")
    estimator = TFEstimator(trainFn=meet, clusterSize=nodes, verbose=0, nodeEnv={"TFOS_ML_PRELOAD": "0"})
    estimator.setReservationTimeout(seconds)
    try:
        _within(spark, seconds, lambda: estimator.fit(rows))
    except Exception as error:
        return [_failure(check, error, _PORTS)]
    return [ok(check, "and reach each other on their ports")]


def meet(args: Any, ctx: NodeContext) -> None:
    """The train function: listen on the node's own port, and connect to all others."""
    mine = ctx.cluster_spec[ctx.job_name][ctx.task_index]
    host, _, port = mine.rpartition(":")
    with ExitStack() as open_until_all_have_tried:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = open_until_all_have_tried.enter_context(closing(socket.socket(family, socket.SOCK_STREAM)))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host.strip("[]"), int(port)))
        listener.listen()
        ctx.barrier("all listen")
        for other in (address for job in ctx.cluster_spec.values() for address in job if address != mine):
            name, _, number = other.rpartition(":")
            try:
                socket.create_connection((name.strip("[]"), int(number)), PEER_SECONDS).close()
            except OSError as error:
                raise ConnectionError(f"{mine} does not reach the node at {other}: {error}") from error
        ctx.barrier("all have connected")


def check_fit(spark: SparkSession, nodes: int, left: Callable[[float], float]) -> list[Finding]:
    """Train a Keras model of three weights on so many nodes, and append its predictions."""
    seconds = left(FIT_SECONDS)
    rows = spark.range(ROWS).selectExpr("array(id / 32, 1 - id / 32) AS features", "id / 16 AS label")
    estimator = KerasEstimator(model=tiny_model, clusterSize=nodes, batchSize=ROWS, verbose=0)
    estimator.setReservationTimeout(seconds)

    def fit_and_transform() -> int:
        return len(estimator.fit(rows).transform(rows).filter("prediction IS NOT NULL").collect())

    try:
        scored = _within(spark, seconds, fit_and_transform)
    except Exception as error:
        return [_failure("Fit and transform", error, _ELSE)]
    if scored != ROWS:
        return [failed("Fit and transform", f"{scored} of {ROWS} rows have a prediction", _ELSE)]
    return [ok("Fit and transform", f"a Keras model on {nodes} nodes, {ROWS} rows, {ROWS} predictions")]


def tiny_model() -> Any:
    """A compiled model of three weights."""
    import keras  # on nodes, and where the driver looks at the model

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def _within(spark: SparkSession, seconds: float, action: Callable[[], Any]) -> Any:
    """What `action` returns, with all jobs that it starts; ``OutOfTimeError`` once they are cancelled."""
    job = SparkJob(spark, f"{PREFIX}-{uuid.uuid4().hex[:12]}", action)
    if not job.wait(seconds):
        job.cancel(CANCEL_SECONDS)
        raise OutOfTimeError(f"it has not ended within {seconds:.0f} s")
    if job.error is not None:
        raise job.error
    return job.result


def _failure(check: str, error: Exception, advice: str) -> Finding:
    if isinstance(error, (OutOfTimeError, ReservationTimeoutError)):
        return failed(check, error, _SLOW)
    if isinstance(error, MissingPackageError):
        return failed(check, error, "Install it on the driver and on all executors.")
    said = error if isinstance(error, TfosMlError) else f"{type(error).__name__}: {error}"
    return failed(check, redact(said), advice)
