"""The Spark session that all benchmarks share."""

from __future__ import annotations

from pyspark.sql import SparkSession

NODES = 2


def session() -> SparkSession:
    """Two executors of one core each, as the figures in the literature have it."""
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.executor.memory": "4g",
        "spark.driver.memory": "2g",
    }
    return SparkSession.builder.master(f"local-cluster[{NODES},1,4096]").config(map=conf).getOrCreate()
