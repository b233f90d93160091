"""TensorFlowOnSpark's TFCluster under :mod:`cluster_workload`; one line of JSON with all figures.

Run by the Python of the peer's own environment, where tfos_ml is not:

    $(python benchmarks/peers.py tensorflowonspark) benchmarks/tensorflowonspark_peer.py [--widths 784 10]
"""

from __future__ import annotations

import json
import os
import sys

# Not setdefault: whoever starts this script may have set their own environment's.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.pop("SPARK_HOME", None)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from importlib.metadata import version

from cluster_workload import measure, parse_arguments
from executors import session
from tensorflowonspark import TFCluster

VERSIONS = ("tensorflowonspark", "pyspark", "tensorflow", "pyarrow", "numpy")


def main() -> None:
    """Measure, and print."""
    arguments = parse_arguments(__doc__.splitlines()[0])
    spark = session()
    mode = TFCluster.InputMode.SPARK
    figures = measure(spark.sparkContext, TFCluster, mode, arguments.widths, arguments.rows, arguments.seed)
    spark.stop()
    print(json.dumps({"versions": {name: version(name) for name in VERSIONS}, "clusters": figures}))


if __name__ == "__main__":
    main()
