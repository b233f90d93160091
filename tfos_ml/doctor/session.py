"""Checks of a Spark session: task slots, executors, connections from them to the driver, and a tiny fit."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tfos_ml.common.redact import redact
from tfos_ml.common.session_settings import PORT
from tfos_ml.common.sessions import is_connect, is_local
from tfos_ml.common.spark_api import map_in_arrow
from tfos_ml.doctor.host import FAILED, OK, SKIPPED, WARNING, Finding, check_capacity, check_versions, node_versions
from tfos_ml.driver.executor_check import check_executors
from tfos_ml.driver.job_errors import typed_error
from tfos_ml.driver.preflight import allocates_dynamically, check_slots, registered_slots
from tfos_ml.driver.spark_job import SparkJob
from tfos_ml.errors import ClusterConfigError, MissingPackageError, NotEnoughSlotsError, TfosMlError
from tfos_ml.protocol.addresses import client_endpoint, driver_endpoint, unbracketed
from tfos_ml.protocol.transport import TransportServer
from tfos_ml.stages.keras_estimator import KerasEstimator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
NAME = "tfos_ml-doctor"  # of its threads and jobs
CONNECT_SECONDS, CANCEL_SECONDS = 5.0, 3.0
MOST_TASKS = 200
ROWS = 32
_SEVERITY = (SKIPPED, OK, WARNING, FAILED)
SLOW = "Do other jobs hold the slots, or is the host slow? --seconds gives all checks more time together."


class Deadline:
    """So many seconds from now on, for all checks together."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left; raises ``TimeoutError`` if there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time was left")
        return left

    def run(self, action: Callable[[], T]) -> T:
        """What `action` returns or raises; ``TimeoutError`` if that takes longer.

        It runs in a daemon thread, which is left alone then: calls of the JVM cannot be interrupted.
        """
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append((action(), None))
            except BaseException as error:
                outcome.append((None, error))

        thread = threading.Thread(target=run, name=NAME, daemon=True)
        thread.start()
        thread.join(self.left())
        if not outcome:
            raise TimeoutError("it has not ended in time")
        value, error = outcome[0]
        if error is not None:
            raise error
        result: T = value
        return result

    def run_job(self, spark: SparkSession, action: Callable[[], T]) -> T:
        """As :meth:`run`, of an action that starts Spark jobs, which are canceled at the deadline."""
        job = SparkJob(spark, f"{NAME}-{uuid.uuid4().hex[:12]}", action)
        if not job.wait(self.left()):
            job.cancel(CANCEL_SECONDS)
            raise TimeoutError("it has not ended in time")
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result


def check_session(spark: SparkSession, nodes: int) -> list[Finding]:
    """Describe the session, and check whether `nodes` tasks can run at once."""
    where = "Spark Connect" if is_connect(spark) else f"master {spark.sparkContext.master}"
    session = Finding("Spark session", OK, f"Spark {spark.version}, {where}")
    if is_connect(spark):
        return [session, Finding("Task slots", SKIPPED, "a client of Spark Connect cannot count them")]
    try:
        check_slots(spark, nodes, CONNECT_SECONDS, name="--nodes", advice="Lower --nodes")
    except NotEnoughSlotsError as error:
        advice = "Ask for more cores or executors (--master, --conf spark.executor.instances=...), or free some."
        return [session, failed("Task slots", error, advice)]
    return [session, Finding("Task slots", OK, f"{nodes} nodes can run at once")]


def check_tasks(spark: SparkSession, nodes: int, deadline: Deadline) -> list[Finding]:
    """Look at the executors from tasks of one job: the worst finding of each check."""
    advice = f"Have spark.pyspark.python, or PYSPARK_PYTHON, name a Python as this one: {sys.executable}."
    try:
        check_executors(spark, nodes)
    except ClusterConfigError as error:
        return [failed("Executors' Python", error, advice)]
    try:
        endpoint = client_endpoint(spark) if is_connect(spark) else driver_endpoint(spark)
        server = TransportServer(endpoint, secrets.token_urlsafe(32))
    except ClusterConfigError as error:
        return [failed("Driver's port", error, f"Free the port, or set {PORT} to another (0: any).")]
    try:
        by_task = _look(spark, nodes, (server.host, server.port), deadline)
    except TimeoutError:
        raise
    except Exception as error:  # whatever Spark raises
        return [failed("Executors' Python", typed_error(error, spark), advice)]
    finally:
        server.close()
    return [max(same, key=lambda one: _SEVERITY.index(one.status)) for same in zip(*by_task, strict=True)]


def _look(spark: SparkSession, nodes: int, driver: tuple[str, int], deadline: Deadline) -> list[list[Finding]]:
    """The findings of each task."""
    at_once = not allocates_dynamically(spark)
    counts = at_once and not is_connect(spark) and not is_local(spark)
    tasks = min(max(nodes, registered_slots(spark)), MOST_TASKS) if counts else nodes
    look = partial(look_from_task, driver, node_versions(), is_connect(spark), is_local(spark))
    df = map_in_arrow(spark.range(0, tasks, 1, tasks), look, "findings string", barrier=at_once)
    rows = deadline.run_job(spark, df.collect)
    return [[Finding(**one) for one in json.loads(row.findings)] for row in rows]


def look_from_task(
    driver: tuple[str, int],
    versions: dict[str, str],
    connect: bool,
    on_drivers_host: bool,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The task: one row, with its findings as JSON."""
    for _ in batches:
        pass
    findings = [check_versions(versions), _check_connection(driver, connect)]
    findings += [] if on_drivers_host else check_capacity("executors")
    yield pa.record_batch([[json.dumps([asdict(one) for one in findings])]], ["findings"])


def _check_connection(driver: tuple[str, int], connect: bool) -> Finding:
    check, (host, port) = "Executors to driver", driver
    try:
        socket.create_connection((unbracketed(host), port), CONNECT_SECONDS).close()
    except OSError as error:
        message = f"{socket.gethostname()} does not reach {host}:{port}: {error}"
        if connect:
            advice = (
                "Fits work, but report metrics and progress late. Set spark.tfos_ml.clientHost to an address of this "
                f"client that executors reach, and {PORT} to a port that is let through."
            )
            return Finding(check, WARNING, message, advice)
        advice = (
            f"If a firewall, NAT or container is between them, set {PORT} to a port that it lets through, "
            "spark.port.maxRetries to how many more, and spark.driver.host to an address of the driver that executors "
            "reach."
        )
        return Finding(check, FAILED, message, advice)
    return Finding(check, OK, f"{host}:{port} answers")


def check_fit(spark: SparkSession, nodes: int, deadline: Deadline) -> list[Finding]:
    """Train a Keras model of three weights on `nodes` nodes, which meet and exchange gradients, and predict."""
    check, advice = "Fit and transform", "Follow the message; the executors' logs have all."
    rows = spark.range(ROWS).selectExpr("array(id / 32, 1 - id / 32) AS features", "id / 16 AS label")
    estimator = KerasEstimator(model=tiny_model, clusterSize=nodes, batchSize=ROWS, verbose=0)
    estimator.setReservationTimeout(deadline.left())

    def fit_and_transform() -> int:
        return len(estimator.fit(rows).transform(rows).filter("prediction IS NOT NULL").collect())

    try:
        predictions = deadline.run_job(spark, fit_and_transform)
    except TimeoutError:
        raise
    except MissingPackageError as error:
        return [failed(check, error, "Install it on the driver and on all executors.")]
    except Exception as error:
        return [failed(check, error, advice)]
    if predictions != ROWS:
        return [Finding(check, FAILED, f"{predictions} of {ROWS} rows have a prediction", advice)]
    return [Finding(check, OK, f"a Keras model on {nodes} nodes, {ROWS} rows, {ROWS} predictions")]


def tiny_model() -> Any:
    """A compiled model of three weights."""
    import keras  # on nodes, and where the driver looks at the model

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def failed(check: str, error: BaseException, advice: str) -> Finding:
    """An error on one line, without Java's frames."""
    text = str(error) if isinstance(error, (TfosMlError, TimeoutError)) else f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return Finding(check, FAILED, redact(" ".join(lines))[:600], advice)
