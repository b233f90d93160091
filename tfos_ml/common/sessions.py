"""What kind of Spark session there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a Spark Connect client, without a JVM of its own."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_local(spark: SparkSession) -> bool:
    """Whether all tasks run in the driver's own process."""
    master: str = spark.conf.get("spark.master", "") or ""
    return master == "local" or master.startswith("local[")
