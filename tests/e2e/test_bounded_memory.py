"""Rows beyond ``spark.tfos_ml.spoolMemory``: on disk, in the same order, with the same results, and gone afterwards."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import CLEAN_SECONDS, wait_until
from pyspark.sql import functions as F
from settings import setting
from supervisors import supervisor_of
from train_functions import write

from tfos_ml import KerasEstimator, TFEstimator, errors

SLOW = r"permutes all rows, of which some are on disk.*shuffleMemory=16.0 GiB.* are 2.9 MiB.*spoolMemory=0.3 MiB"
ROWS, WIDTH = 2000, 2500  # of 20 kB each, 40 MB


def wide_rows(spark):
    return spark.range(0, ROWS, 1, 5).select(F.array_repeat("id", WIDTH).alias("features"))


def spool_files(ctx):
    """Files with rows of a node, in memory and on disk, and its directories."""
    from tfos_ml.data import spool

    disk = Path(ctx._directory)
    memory = list(spool.SHARED_MEMORY.glob(f"tfos_ml-spool-*-{supervisor_of(ctx)}-*"))
    files = [[f for d in directories for f in d.glob("*.arrow")] for directories in (memory, [disk])]
    return *files, [str(d) for d in (*memory, disk)]


def labeled(spark):
    """About 3 MB."""
    x = F.transform(F.sequence(F.lit(1), F.lit(500)), lambda i: F.sin(i * F.col("id")).cast("float"))
    return spark.range(0, 1500, 1, 4).select(x.alias("features"), F.cos("id").alias("label"))


def fitted(spark, budget):
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((500,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    with setting(spark, "spoolMemory", budget):
        return KerasEstimator(model=model, batchSize=64, epochs=2, shuffle=True, verbose=0).fit(labeled(spark))


def test_weights_are_the_same_bit_for_bit_with_a_small_budget(spark):
    large = fitted(spark, "1g")
    with pytest.warns(UserWarning, match=SLOW):
        small = fitted(spark, "300k")
    assert large.summary.history == small.summary.history
    rows = labeled(spark).limit(20)
    one, other = (np.array([r[0] for r in m.transform(rows).select("prediction").collect()]) for m in (large, small))
    assert one.tolist() == other.tolist()


def test_nothing_is_left_of_a_node_that_is_killed_while_it_reads_from_disk(spark, tmp_path):
    def die(args, ctx):
        batches = iter(ctx.dataset(shuffle=True))
        next(batches)
        _, on_disk, directories = spool_files(ctx)
        write(args, ctx, {"on_disk": len(on_disk), "directories": directories})
        os.kill(supervisor_of(ctx), signal.SIGKILL)
        next(batches)
        signal.pause()

    estimator = TFEstimator(trainFn=die, tfArgs={"directory": str(tmp_path)}, clusterSize=1, verbose=0)
    with setting(spark, "spoolMemory", "4m"), pytest.raises(errors.NodeError):
        estimator.fit(wide_rows(spark))
    (seen,) = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert seen["on_disk"] > 0
    assert wait_until(lambda: not any(map(os.path.exists, seen["directories"])), CLEAN_SECONDS)
