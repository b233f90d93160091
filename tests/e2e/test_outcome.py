"""What ``fit`` says of train functions that ran well, and did not do what their author thinks."""

from __future__ import annotations

import warnings

import pytest
from pyspark.sql import functions as F

from tfos_ml import TFEstimator, errors


def rows(spark):
    return spark.range(0, 60, 1, 3).select(F.array(F.col("id") / 60).alias("features"), F.lit(1.0).alias("label"))


def fit(spark, train_fn, **params):
    return TFEstimator(trainFn=train_fn, verbose=0, **params).fit(rows(spark))


def train_alone(args, ctx):
    import keras

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(ctx.dataset(), verbose=0)
    ctx.export_saved_model(model)


def test_workers_that_train_each_on_its_own_rows(spark):
    with pytest.warns(errors.IndependentWorkersWarning) as told:
        fit(spark, train_alone, clusterSize=2)
    (warning,) = [w for w in told if w.category is errors.IndependentWorkersWarning]  # Spark 3.5 has some of its own
    assert "worker:0 alone" in str(warning.message)
    assert "30 of 60 rows" in str(warning.message)
    assert "KerasEstimator" in str(warning.message)
    assert warning.filename == __file__  # the line of the user's own fit


def test_sys_exit_before_the_export(spark):
    def leave(args, ctx):
        import sys

        sys.exit(0)
        ctx.export_saved_model(None)

    with pytest.warns(errors.NothingExportedWarning, match=r"sys\.exit\(0\).*test_outcome\.py.*line \d+.*in leave"):
        fit(spark, leave)


def test_a_process_that_ends_itself(spark):
    def leave(args, ctx):
        import os

        os._exit(0)

    with pytest.raises(errors.NodeExitError, match="exited with code 0 before its train function had returned"):
        fit(spark, leave)


def test_a_train_function_that_exports_nothing(spark):
    def forget(args, ctx):
        feed = ctx.get_data_feed()
        while not feed.should_stop():
            feed.next_batch(100)

    with pytest.warns(errors.NothingExportedWarning, match=r"Call ctx\.export_saved_model"):
        model = fit(spark, forget, clusterSize=2)
    with pytest.raises(errors.NothingExportedError):
        model.transform(rows(spark))


def test_one_that_answers_its_rows_need_not_export(spark):
    def answer(args, ctx):
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            feed.batch_results([0] * len(feed.next_batch(100)))

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = fit(spark, answer)
    assert model.results() == [0] * 60
