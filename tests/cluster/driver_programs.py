"""The driver of a cluster under test: ``python driver_programs.py <settings>``, a program and its end a line.

Runs what the tests ask for in one Spark session after the other as a user would: ``fit`` of a ``TFEstimator`` with a
function of ``cluster_train_functions.py``. One JSON object a line on stdin begins a program; one on stdout says how
it ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import cluster_train_functions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tfos_ml import TFEstimator, errors

WIDE = 1000  # longs in one row: 8 kB


def session(settings: dict[str, str]) -> SparkSession:
    """The session of this process."""
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.enabled": "false",
    }
    builder = SparkSession.builder.config(map={**defaults, **settings}).appName("tfos_ml cluster tests")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def rows(spark: SparkSession, count: int, partitions: int, wide: bool) -> DataFrame:
    """Rows with their number as features, or with as many as 8 kB of it."""
    df = spark.range(0, count, 1, partitions)
    return df.select((F.array_repeat("id", WIDE) if wide else F.col("id")).alias("features"))


def fit(
    spark: SparkSession,
    train: str,
    directory: str,
    count: int = 100,
    partitions: int = 4,
    wide: bool = False,
    arguments: dict[str, Any] | None = None,
    **params: Any,
) -> dict[str, Any]:
    """Fit; returns the summary."""
    params = {"clusterSize": 2, "verbose": 0, "reservationTimeout": 60.0, "feedTimeout": 60.0, **params}
    tf_args = {"directory": directory, **(arguments or {})}
    estimator = TFEstimator(trainFn=getattr(cluster_train_functions, train), tfArgs=tf_args, **params)
    model = estimator.fit(rows(spark, count, partitions, wide))
    return {"rows": model.summary["rows"], "history": model.history}


PROGRAMS = {"fit": fit}


def run(spark: SparkSession, program: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """How a program ended."""
    began = time.monotonic()
    try:
        outcome: dict[str, Any] = {"result": PROGRAMS[program](spark, **arguments)}
    except BaseException as error:
        outcome = {
            "error": type(error).__name__,
            "typed": isinstance(error, errors.TfosMlError),
            "message": str(error),
            "node": f"{error.role}:{error.index}" if isinstance(error, errors.NodeError) else None,
            "host": getattr(error, "host", None),
        }
    return {**outcome, "seconds": time.monotonic() - began}


def main() -> None:
    spark = session(json.loads(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(run(spark, **json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to the log
    main()
