"""Rows beyond ``spark.tfos_ml.spoolMemory``: on disk, in the same order, with the same results, and gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import CLEAN_SECONDS, LOCAL, wait_until
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


def read(directory: Path) -> list[dict]:
    return [json.loads(p.read_text()) for p in sorted(directory.glob("*.json"))]


@pytest.fixture(scope="module")
def spark(sessions):
    return sessions.get(LOCAL)


def labeled(spark):
    """About 3 MB."""
    x = F.transform(F.sequence(F.lit(1), F.lit(500)), lambda i: F.sin(i * F.col("id")).cast("float"))
    return spark.range(0, 1500, 1, 4).select(x.alias("features"), F.cos("id").alias("label"))


def fitted(spark, workers, budget, **params):
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((500,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    fixed = {"batchSize": 64, "epochs": 2, "shuffle": False, "verbose": 0}
    with setting(spark, "spoolMemory", budget):
        return KerasEstimator(model=model, clusterSize=workers, **{**fixed, **params}).fit(labeled(spark))


@pytest.mark.parametrize(
    ("workers", "params"),
    [
        (1, {"shuffle": True}),
        pytest.param(2, {"validationSplit": 0.2}, marks=pytest.mark.chaos),
    ],
    ids=["shuffled", "validation"],
)
def test_weights_are_the_same_bit_for_bit_with_a_small_budget(spark, workers, params):
    told = pytest.warns(UserWarning, match=SLOW) if "shuffle" in params else contextlib.nullcontext()
    large = fitted(spark, workers, "1g", **params)
    with told:
        small = fitted(spark, workers, "300k", **params)
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
    (seen,) = read(tmp_path)
    assert seen["on_disk"] > 0
    assert wait_until(lambda: not any(map(os.path.exists, seen["directories"])), CLEAN_SECONDS)


def test_a_size_that_is_none_is_an_error_before_any_job(spark):
    """All settings, and what they take, are in ``unit/test_session_settings.py``."""
    estimator = TFEstimator(trainFn=lambda args, ctx: None, clusterSize=1, verbose=0)
    message = r"spark\.tfos_ml\.shuffleMemory=-1 must be a size"
    with setting(spark, "shuffleMemory", "-1"), pytest.raises(errors.ClusterConfigError, match=message):
        estimator.fit(spark.range(3).withColumnRenamed("id", "features"))
