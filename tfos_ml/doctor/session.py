"""The Spark session: started, looked at and stopped, each in time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfos_ml.common.redact import redact
from tfos_ml.common.sessions import is_connect
from tfos_ml.doctor.deadline import OutOfTimeError, within
from tfos_ml.doctor.finding import Finding, failed, ok, skipped
from tfos_ml.driver.preflight import check_settings, check_slots
from tfos_ml.errors import ClusterConfigError, NotEnoughSlotsError
from tfos_ml.protocol.addresses import node_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS, STOP_SECONDS, SLOTS_SECONDS = 30.0, 5.0, 15.0
DEFAULTS = {
    "spark.app.name": "tfos_ml doctor",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def active_session() -> SparkSession | None:
    """The session of this program, as in a notebook; None if it has none."""
    from pyspark.sql import SparkSession

    try:
        return SparkSession.getActiveSession()
    except ImportError:  # a client of Spark Connect alone, which has not asked for one yet
        return None


def start(master: str | None, remote: str | None, conf: Mapping[str, str], seconds: float) -> SparkSession:
    """A new session; raises what Spark raises, and ``OutOfTimeError``."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if remote:
        builder = builder.remote(remote)
    elif master:
        builder = builder.master(master)
    settings = dict(conf) if remote else {**DEFAULTS, **conf}
    for name, value in settings.items():
        builder = builder.config(name, value)
    # A client of Spark Connect reaches its server only when it asks something.
    return within(seconds, lambda: _asked(builder.getOrCreate()))


def _asked(spark: SparkSession) -> SparkSession:
    assert spark.version
    return spark


def stop(spark: SparkSession) -> None:
    """Stop it, as far as that can be done in time; what is left ends with this process."""
    with contextlib.suppress(OutOfTimeError):
        within(STOP_SECONDS, spark.stop)


def described(spark: SparkSession) -> Finding:
    """What session there is."""
    if is_connect(spark):
        return ok("Spark session", f"Spark {spark.version}, Spark Connect")
    context = spark.sparkContext
    return ok("Spark session", f"Spark {spark.version}, master {context.master}, {context.applicationId}")


def not_started(error: BaseException, console: str, remote: str | None) -> Finding:
    """Why there is no session."""
    lines = [line for line in console.splitlines() if "Exception" in line or "ERROR" in line or "rror:" in line]
    first = "it has not started" if isinstance(error, OutOfTimeError) else type(error).__name__
    said = redact("; ".join([f"{first}: {error}".partition("\n")[0], *lines[:2]]))
    if remote:
        return failed("Spark session", said, "Check that the Spark Connect server runs at the address of --remote.")
    advice = (
        "Check --master and --conf, and the addresses: spark.driver.host, spark.driver.bindAddress, SPARK_LOCAL_IP. "
        "--verbose shows all that Spark says."
    )
    return failed("Spark session", said, advice)


def judge_settings(spark: SparkSession) -> list[Finding]:
    """Spark's settings, as every fit checks them, and ours."""
    try:
        check_settings(spark)
        node_ports(spark)
    except ClusterConfigError as error:
        return [failed("Spark settings", error, "Start the session with the setting that the message names.")]
    return [ok("Spark settings", "none is in the way")]


def judge_slots(spark: SparkSession, nodes: int, seconds: float) -> list[Finding]:
    """Whether so many nodes find room at once."""
    if is_connect(spark):
        return [skipped("Task slots", "a client of Spark Connect cannot count them")]
    try:
        check_slots(spark, nodes, seconds, name="--nodes", advice="Lower --nodes")
    except NotEnoughSlotsError as error:
        advice = "Ask for more cores or executors (--master, --conf spark.executor.instances=...), or free some."
        return [failed("Task slots", error, advice)]
    return [ok("Task slots", f"there is room for {nodes} nodes at once")]
