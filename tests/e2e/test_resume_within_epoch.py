"""Fits that go on from a checkpoint, and say where they cannot; how they go on is in test_elastic.py."""

from __future__ import annotations

import pytest
from resumed_model import BATCH, Expected, network

from tfos_ml import KerasEstimator, errors

pytestmark = pytest.mark.filterwarnings("ignore:Training on several workers", "ignore:Skipping variable loading")


def ending():
    """A callback that ends the training after four updates."""
    import keras

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) >= 4:
                raise RuntimeError("ended after four updates")

    return Ends()


def test_checkpoint_steps_without_a_directory_are_an_error_before_the_job(spark):
    df = spark.createDataFrame([([0.0] * 5, 1.0)], "features array<float>, label float")
    with pytest.raises(errors.ParamError, match="checkpointSteps needs modelDir"):
        KerasEstimator(model=network, checkpointSteps=3).fit(df)


def test_a_checkpoint_beyond_the_steps_of_fewer_rows_is_an_error_that_says_so(spark, tmp_path):
    """Red before: TensorFlow's error about the cardinality of a dataset."""
    df = Expected().frame(spark).drop("held")
    estimator = KerasEstimator(model=network, callbacks=[ending()], modelDir=str(tmp_path / "model"), verbose=0)
    estimator.setParams(checkpointSteps=3, epochs=2, batchSize=BATCH)
    with pytest.raises(errors.TrainFnError, match="ended after"):
        estimator.fit(df)
    with pytest.raises(errors.ModelError, match="after step 6 of an epoch, and the rows of this fit make 2 "):
        estimator.fit(df.limit(2 * BATCH))


def linear(loss="mse", rate=0.1):
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), loss)
    return model


def test_a_refit_that_trains_nothing_says_so(spark, tmp_path):
    """Red before: the model of before came back without a word."""
    import keras

    df = spark.createDataFrame(
        [([float(i % 3), 1.0], float(i % 3)) for i in range(8)], "features array<float>, label float"
    )
    callbacks = [keras.callbacks.EarlyStopping("loss", min_delta=100.0, patience=1)]
    estimator = KerasEstimator(linear, modelDir=str(tmp_path), callbacks=callbacks, epochs=2, verbose=0)
    first = estimator.fit(df)
    told = "after epoch 2, in which a callback ended the training. Choose another modelDir"
    again = {estimator.modelArgs: {"loss": "mae", "rate": 0.5}, estimator.epochs: 3}
    with pytest.warns(UserWarning, match=f"Nothing was trained: .* {told}"):
        second = estimator.fit(df, again)
    assert second.summary.history == first.summary.history
