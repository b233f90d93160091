"""How fast TensorFlowOnSpark's TFModel scores rows; prints the rows a second of each round, a line each.

Run by the Python of the peer's own environment, where tfos_ml is not; ``transform.py`` does so.

    $(python benchmarks/peers.py tensorflowonspark) benchmarks/tensorflowonspark_scoring.py DIRECTORY WIDTH ROWS ROUNDS
"""

from __future__ import annotations

import os
import sys
import time

# Not setdefault: whoever starts this script may have set their own environment's.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.pop("SPARK_HOME", None)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from executors import frame, session
from pyspark.sql import functions as F
from tensorflowonspark.pipeline import TFModel

BATCH = 1024


def main(directory: str, width: int, rows: int, rounds: int) -> None:
    """Score the rows of a round more than asked for; the first loads the model."""
    spark = session()
    df = frame(spark, width, rows)
    model = TFModel({}).setInputMapping({"features": "features"}).setOutputMapping({"y": "prediction"})
    model = model.setExportDir(directory).setSignatureDefKey("serving_default").setTagSet("serve").setBatchSize(BATCH)
    for number in range(rounds + 1):
        start = time.monotonic()
        model.transform(df).agg(F.sum(F.col("prediction")[0])).collect()
        if number:
            print(rows / (time.monotonic() - start), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
