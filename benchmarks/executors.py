"""The Spark session and the rows that benchmarks share, and the arguments of those that compare widths of rows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])  # of executors, too
NODES = 2


def session(executors: int = NODES, cores: int = 1, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Executors with so many cores each; two of one, as the figures in the literature have it, by default."""
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.executor.memory": "4g",
        "spark.driver.memory": "2g",
        **(settings or {}),
    }
    return SparkSession.builder.master(f"local-cluster[{executors},{cores},4096]").config(map=conf).getOrCreate()


def frame(spark: SparkSession, width: int, rows: int) -> DataFrame:
    """`rows` rows of `width` random floats, cached."""

    def fill(batches):
        random = np.random.default_rng(0)
        for batch in batches:
            flat = pa.array(random.random(batch.num_rows * width, dtype=np.float32))
            lists = pa.FixedSizeListArray.from_arrays(flat, width).cast(pa.list_(pa.float32()))
            yield pa.RecordBatch.from_arrays([lists], ["features"])

    df = spark.range(0, rows, 1, 8).mapInArrow(fill, "features array<float>").cache()
    assert df.count() == rows
    return df


def measure_widths(description: str, widths: Iterable[int], measure: Callable[..., None], **switches: str) -> None:
    """Call ``measure(spark, width, rounds)`` for each width that the command line asks for.

    `switches` are options without a value, with what they do; each is a keyword argument of `measure`, True if given.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--widths", type=int, nargs="+", default=list(widths), choices=list(widths))
    for name, text in switches.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=text)
    arguments = parser.parse_args()
    spark = session()
    for width in arguments.widths:
        measure(spark, width, arguments.rounds, **{name: getattr(arguments, name) for name in switches})
    spark.stop()
