"""Hundreds of fits and transforms in one session: nothing grows."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import of_another_session, our_processes
from elsewhere import run_elsewhere
from pyspark.sql import functions as F

from tfos_ml import TFEstimator, errors
from tfos_ml.protocol.messages import Exported

RUNS = int(os.environ.get("TFOS_ML_SOAK_RUNS", "200"))
SAMPLE_EVERY = max(1, RUNS // 100)
FAIL_EVERY = 10
MASTER = "local[2]"
RETAINED = {  # what Spark itself keeps of jobs that have ended
    "spark_ui_retainedJobs": "10",
    "spark_ui_retainedStages": "10",
    "spark_ui_retainedTasks": "50",
    "spark_sql_ui_retainedExecutions": "10",
}
MAKE_MODEL = """
import sys
import tensorflow as tf
module = tf.Module()
module.weight = tf.Variable(2.0)
module.serve = tf.function(lambda features: {"y": module.weight * features})
spec = tf.TensorSpec([None], tf.float32, "features")
tf.saved_model.save(module, sys.argv[1], signatures=module.serve.get_concrete_function(features=spec))
"""
MIB = 1 << 20
WARM_SHARE = 0.2  # of the samples, in which caches fill
DAEMONS = {"pyspark.daemon", "tfos_ml.agent.daemon"}
SERVER = "tfos_ml.worker.fork_server"  # what it forks shows the same command
BOUNDS = {  # how much may grow after the warm runs, by the line that fits the samples best
    "driver: threads": 1,
    "driver: descriptors": 2,
    "driver: MiB": 24,
    "JVM: MiB of heap in use": 12,
    "Python workers: MiB of the largest": 48,
    "fork server and scoring: MiB": 48,
    "nodes": 0.5,
    "artifacts of the session": 0.5,
    "files in shared memory": 0.5,
}


def mib(process: psutil.Process) -> float:
    try:
        return process.memory_info().rss / MIB
    except psutil.Error:  # it has just ended
        return 0.0


def shows(process: psutil.Process, *words: str) -> bool:
    try:
        return bool({*words} & {*process.cmdline()})
    except psutil.Error:
        return False


def sample(spark: Any) -> dict[str, float]:
    """What there is now, with all garbage collected."""
    gc.collect()
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    spark._jvm.java.lang.System.gc()
    me = psutil.Process()
    jvm = next(p for p in me.children() if p.name() == "java")
    workers = [p for p in jvm.children(recursive=True) if shows(p, *DAEMONS)]
    servers = [p for p in psutil.process_iter() if shows(p, SERVER) and not of_stranger(p)]
    return {
        "driver: threads": threading.active_count(),
        "driver: descriptors": me.num_fds(),
        "driver: MiB": mib(me),
        "JVM: MiB of heap in use": (runtime.totalMemory() - runtime.freeMemory()) / MIB,
        "Python workers: MiB of the largest": max(map(mib, workers)),
        "fork server and scoring: MiB": sum(map(mib, servers)),
        "nodes": len(our_processes()),
        "artifacts of the session": spark.sparkContext._jsc.sc().listFiles().size(),
        "files in shared memory": sum(not of_another_session(p) for p in Path("/dev/shm").glob("tfos_ml-*")),
    }


def of_stranger(process: psutil.Process) -> bool:
    """Whether these tests have not started it."""
    try:
        return process.environ().get("TFOS_ML_TEST_SESSION") != os.environ["TFOS_ML_TEST_SESSION"]
    except psutil.Error:
        return True


def make_train_function():
    """One that the nodes need not import."""

    def read_and_export(args, ctx):
        """Read all rows, and export a SavedModel that is there already: without TensorFlow, so that a fit is short."""
        feed, rows = ctx.get_data_feed(), 0
        while not feed.should_stop():
            rows += len(feed.next_batch(100))
        ctx.report({"rows": rows}, epoch=0)
        if args.fails:
            raise ZeroDivisionError("as it should")
        if ctx.is_chief:
            path = os.path.join(ctx._directory, "saved_model")
            shutil.copytree(args.saved_model, path)
            ctx._channel.send(Exported(path))

    return read_and_export


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore::tfos_ml.errors.IndependentWorkersWarning")  # its nodes have nothing to exchange
def test_fits_and_transforms_in_a_row_leave_nothing_behind(sessions, tmp_path, capsys):
    saved_model = str(tmp_path / "saved_model")
    run_elsewhere(MAKE_MODEL, saved_model)
    spark = sessions.get(MASTER, **RETAINED)
    rows = spark.range(0, 400, 1, 2).select(F.col("id").cast("float").alias("features"))
    samples = []
    for number in range(RUNS):
        export_dir = tmp_path / f"export-{number}"
        arguments = {"saved_model": saved_model, "fails": False}
        estimator = TFEstimator(
            trainFn=make_train_function(), tfArgs=arguments, clusterSize=2, verbose=0, exportDir=str(export_dir)
        )
        model = estimator.fit(rows)
        assert model.summary.history["rows"]
        doubled = model.transform(rows).agg(F.sum(F.col("prediction") - F.col("features"))).first()[0]
        assert doubled == 400 * 399 / 2
        if number % SAMPLE_EVERY == 0:
            samples.append(sample(spark))
        if number % FAIL_EVERY == 0:  # ends Spark's Python workers, too
            with pytest.raises(errors.TrainFnError, match="as it should"):
                estimator.copy().setExportDir(f"{export_dir}-not").setTfArgs({**arguments, "fails": True}).fit(rows)
        shutil.rmtree(export_dir)
        del estimator, model
    counted = samples[int(len(samples) * WARM_SHARE) :]
    steps = np.arange(len(counted))
    growth = {
        name: float(np.polyfit(steps, [each[name] for each in counted], 1)[0] * (len(counted) - 1)) for name in BOUNDS
    }
    with capsys.disabled():
        for name, bound in BOUNDS.items():
            values = f"{counted[0][name]:>10,.1f}{counted[-1][name]:>10,.1f}"
            print(f"{name:38}{values}, grew by {growth[name]:,.1f} of {bound:,.1f} in {RUNS} fits and transforms")
    assert {name: by for name, by in growth.items() if by > BOUNDS[name]} == {}
