"""Hundreds of fits and transforms in one session: nothing grows."""

from __future__ import annotations

import os
import shutil

import pytest
from elsewhere import run_elsewhere
from flatness import BOUNDS, Sampler, table
from pyspark.sql import functions as F

from tfos_ml import TFEstimator, errors

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

pytestmark = pytest.mark.soak


@pytest.fixture
def saved_model(tmp_path):
    """A SavedModel that doubles its input, made in another process."""
    path = tmp_path / "saved_model"
    run_elsewhere(MAKE_MODEL, str(path))
    return path


def make_train_function():
    """One that the nodes need not import."""

    def read_and_export(args, ctx):
        """Read all rows, and export a SavedModel that is there already: without TensorFlow, so that a fit is short."""
        import os
        import shutil

        feed, rows = ctx.get_data_feed(), 0
        while not feed.should_stop():
            rows += len(feed.next_batch(100))
        ctx.report({"rows": rows}, epoch=0)
        if args.fails:
            raise ZeroDivisionError("as it should")
        if ctx.is_chief:
            path = os.path.join(ctx._directory, "saved_model")
            from tfos_ml.protocol.messages import Exported

            shutil.copytree(args.saved_model, path)
            ctx._channel.send(Exported(path))

    return read_and_export


@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore::tfos_ml.errors.IndependentWorkersWarning")  # its nodes have nothing to exchange
def test_fits_and_transforms_in_a_row_leave_nothing_behind(sessions, saved_model, tmp_path, capsys):
    spark = sessions.get(MASTER, **RETAINED)
    rows = spark.range(0, 400, 1, 2).select(F.col("id").cast("float").alias("features"))
    sampler = Sampler(spark)
    for number in range(RUNS):
        export_dir = tmp_path / f"export-{number}"
        arguments = {"saved_model": str(saved_model), "fails": False}
        estimator = TFEstimator(
            trainFn=make_train_function(), tfArgs=arguments, clusterSize=2, verbose=0, exportDir=str(export_dir)
        )
        model = estimator.fit(rows)
        assert model.summary.history["rows"]
        doubled = model.transform(rows).agg(F.sum(F.col("prediction") - F.col("features"))).first()[0]
        assert doubled == 400 * 399 / 2
        if number % SAMPLE_EVERY == 0:
            sampler.take()
        if number % FAIL_EVERY == 0:  # ends Spark's Python workers, too
            with pytest.raises(errors.TrainFnError, match="as it should"):
                estimator.copy().setExportDir(f"{export_dir}-not").setTfArgs({**arguments, "fails": True}).fit(rows)
        shutil.rmtree(export_dir)
        del estimator, model
    growth = sampler.growth()
    with capsys.disabled():
        print(f"\n{RUNS} fits, {RUNS} transforms, {-(-RUNS // FAIL_EVERY)} fits that fail\n")
        print(table(sampler.samples, growth))
    too_much = {name: round(growth[name], 1) for name, bound in BOUNDS.items() if growth[name] > bound.growth}
    assert not too_much
