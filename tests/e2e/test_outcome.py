"""What ``fit`` says of train functions that ran well, and did not do what their author thinks."""

from __future__ import annotations

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
