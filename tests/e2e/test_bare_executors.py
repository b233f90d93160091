"""Executors whose Python has no package at all, not even PyArrow."""

from __future__ import annotations

import os
import subprocess
import sys
import venv

import pytest

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from tfos_ml import TFEstimator, errors

spark = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
print("fit begins", file=sys.stderr, flush=True)
try:
    TFEstimator(trainFn=lambda args, ctx: None, clusterSize=2).fit(spark.range(10).withColumnRenamed("id", "features"))
except errors.ClusterConfigError as error:
    print(error)
print("fit ends", file=sys.stderr, flush=True)
spark.stop()
"""


@pytest.mark.timeout(180)
@pytest.mark.chaos
def test_packages_that_executors_lack_are_named_and_spark_prints_nothing(tmp_path):
    venv.create(tmp_path / "bare")
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(tmp_path / "bare" / "bin" / "python"),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=170
    )
    assert "tensorflow or pyarrow or cloudpickle or msgspec or psutil. Install what the driver has" in done.stdout, (
        done.stderr
    )
    told = done.stderr.partition("fit begins")[2].partition("fit ends")[0]
    assert "Exception" not in told
    assert "\tat " not in told
