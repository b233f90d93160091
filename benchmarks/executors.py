"""The Spark session that all benchmarks share, and the arguments of those that compare widths of rows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from pyspark.sql import SparkSession

NODES = 2


def session(executors: int = NODES, cores: int = 1) -> SparkSession:
    """Executors with so many cores each; two of one, as the figures in the literature have it, by default."""
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.executor.memory": "4g",
        "spark.driver.memory": "2g",
    }
    return SparkSession.builder.master(f"local-cluster[{executors},{cores},4096]").config(map=conf).getOrCreate()


def measure_widths(description: str, widths: Iterable[int], measure: Callable[[SparkSession, int, int], None]) -> None:
    """Call ``measure(spark, width, rounds)`` for each width that the command line asks for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--widths", type=int, nargs="+", default=list(widths), choices=list(widths))
    arguments = parser.parse_args()
    spark = session()
    for width in arguments.widths:
        measure(spark, width, arguments.rounds)
    spark.stop()
