"""A training that ends within an epoch goes on at the step of its last checkpoint, on any number of workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from resumed_model import BATCH, EPOCHS, Expected, network, stateful_callbacks

from tfos_ml import KerasEstimator, errors

pytestmark = pytest.mark.filterwarnings("ignore:Training on several workers", "ignore:Skipping variable loading")


def ending_after(directory: Path, updates):
    """A callback that ends the training after some updates, once each."""
    import keras

    class Ends(keras.callbacks.Callback):
        chief_only = True

        def on_train_batch_end(self, batch, logs=None):
            done = int(self.model.optimizer.iterations)
            for number in updates:
                mark = Path(directory, f"ended-{number}")
                if done >= number and not mark.exists():
                    mark.touch()
                    raise RuntimeError(f"ended after {number} updates")

    return Ends()


@pytest.mark.chaos  # test_elastic.py kills processes between checkpoints within an epoch, too
@pytest.mark.parametrize(("at_once", "resumed_at"), [(1, (6, 3, 9)), (5, (5, 5, 5))])
def test_weights_and_history_are_those_of_plain_keras(spark, tmp_path, at_once, resumed_at):
    expected = Expected(steps_per_execution=at_once)
    df = expected.frame(spark)
    ends = (4, 9, 17)  # updates, each after two steps

    def estimator(workers):
        return KerasEstimator(
            model=network,
            modelArgs={"steps_per_execution": at_once},
            callbacks=[*stateful_callbacks(), ending_after(tmp_path, ends)],
            modelDir=str(tmp_path / "model"),
            exportDir=str(tmp_path / "export"),
            validationIndicatorCol="held",
            checkpointSteps=3,
            epochs=EPOCHS,
            clusterSize=workers,
            batchSize=BATCH,
            shuffle=False,
            verbose=0,
        )

    for workers, steps in zip((2, 3, 1), resumed_at, strict=True):
        with pytest.raises(errors.TrainFnError, match="ended after"):
            estimator(workers).fit(df)
        newest = max((tmp_path / "model" / "tfos_ml").glob("epoch-*/state.json"))
        assert f"-step-{steps:06d}-" in newest.parent.name
        files = json.loads(newest.read_text())["files"]
        assert files.keys() == {
            "model.weights.h5",
            "arrays.npz",
            "callbacks.pkl",
        }  # the last for the class SlowerByStep
    with pytest.warns(UserWarning, match="Training continued from a checkpoint in modelDir='.*', after epoch"):
        fitted = estimator(2).fit(df)
    expected.check(fitted.summary, tmp_path / "export" / "assets.extra" / "model.weights.h5")
    again = estimator(1)
    with pytest.warns(UserWarning, match="Nothing was trained: .* has the state after epoch 4, and epochs=4"):
        complete = again.fit(df, {again.exportDir: str(tmp_path / "again")})
    assert not complete.summary.steps


def test_checkpoint_steps_without_a_directory_are_an_error_before_the_job(spark):
    df = spark.createDataFrame([([0.0] * 5, 1.0)], "features array<float>, label float")
    with pytest.raises(errors.ParamError, match="checkpointSteps needs modelDir"):
        KerasEstimator(model=network, checkpointSteps=3).fit(df)


def test_a_checkpoint_beyond_the_steps_of_fewer_rows_is_an_error_that_says_so(spark, tmp_path):
    """Red before: TensorFlow's error about the cardinality of a dataset."""
    df = Expected().frame(spark).drop("held")
    ends = ending_after(tmp_path, (4,))  # updates, each after two steps
    estimator = KerasEstimator(model=network, callbacks=[ends], modelDir=str(tmp_path / "model"), verbose=0)
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


def stopping():
    import keras

    return keras.callbacks.EarlyStopping("loss", min_delta=100.0, patience=1)


@pytest.mark.parametrize(
    ("ends_early", "told"),
    [
        pytest.param(False, "after epoch 2, and epochs=2", marks=pytest.mark.chaos),
        (True, "after epoch 2, in which a callback ended the training"),
    ],
)
def test_a_refit_that_trains_nothing_says_so(spark, tmp_path, ends_early, told):
    """Red before: the model of before came back without a word."""
    df = spark.createDataFrame(
        [([float(i % 3), 1.0], float(i % 3)) for i in range(8)], "features array<float>, label float"
    )
    estimator = KerasEstimator(linear, modelDir=str(tmp_path), callbacks=[stopping()] * ends_early, epochs=2, verbose=0)
    first = estimator.fit(df)
    again = {estimator.modelArgs: {"loss": "mae", "rate": 0.5}, estimator.epochs: 3 if ends_early else 2}
    with pytest.warns(UserWarning, match=f"Nothing was trained: .* {told}. Choose another modelDir"):
        second = estimator.fit(df, again)
    assert second.summary.history == first.summary.history
