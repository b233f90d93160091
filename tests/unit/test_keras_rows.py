"""What a real ``Model.fit`` of one worker makes of rows that spoil it; everything below the Spark task is real."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_worker import worker_context

from tfos_ml import errors
from tfos_ml.data.spool import SpoolDirectories
from tfos_ml.inference.saved_model import SIGNATURE_FILE, parse_signature
from tfos_ml.keras.build import KerasFit
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.model.inspection import describe
from tfos_ml.keras.model.source import ModelSource
from tfos_ml.keras.training import fit_model

ROWS = 40


def rows(**columns):
    random = np.random.RandomState(0)
    data = {"x": random.randn(ROWS, 4).astype("f"), "y": np.arange(ROWS) % 3, "w": None, "val": None}
    return {**data, **columns}


class Late(keras.Model):
    """Knows its outputs only once it sees rows."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3, activation="softmax")

    def call(self, inputs):
        return self.dense(inputs)


@pytest.fixture
def fit(tmp_path):
    def run(make, data, loss="sparse_categorical_crossentropy", callbacks=(), metrics=None):
        def model():
            keras.utils.set_random_seed(1)
            made = make()
            made.compile("sgd", loss, metrics=metrics)
            return made

        ctx = worker_context(data, 0, 1, False, SpoolDirectories(Path(tmp_path), Path(tmp_path)))
        task = KerasFit(ModelSource(function=model), describe(model()), list(callbacks))
        return fit_model(task, ctx, WorkerGroup.start(0, [""], timeout=60.0)), ctx

    return run


def test_an_index_beyond_an_embedding_names_its_column(fit):
    def model():
        x = keras.layers.Input((4,), name="x", dtype="int32")
        return keras.Model(x, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(5, 2)(x))))

    with pytest.raises(errors.ModelError, match=r"index \d in a table of 5 entries.*column 'x' from 0 to 9\."):
        fit(model, rows(x=np.arange(ROWS * 4).reshape(ROWS, 4).astype("int32") % 10), "mse")


def test_a_step_that_compares_its_rows_gets_doubles_as_keras_makes_them_of_arrays(fit):
    class Autoencoder(Late):
        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x[:, :3] - self(x)) ** 2)
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"distance": loss}

    logs = []
    log = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, values: logs.append(values))
    fit(Autoencoder, rows(x=np.random.RandomState(0).randn(ROWS, 4)), callbacks=[log])
    assert logs[0]["distance"] > 0


def test_the_length_of_the_middle_step_is_known_to_who_serves_the_model(fit, tmp_path):
    lengths = np.arange(ROWS) % 4 + 1
    data = rows(y=lengths.astype("f"), lengths=lengths, batch=2)  # steps of 2, 4, 2, ...

    def mean():
        x = keras.layers.Input((None,), name="x")
        cells = keras.layers.Dense(4)(keras.layers.Reshape((-1, 1))(x))
        return keras.Model(x, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(cells)))

    _, ctx = fit(mean, data, "mse")
    ctx.served[0].write(str(tmp_path / "served"))
    signature = parse_signature((tmp_path / "served" / SIGNATURE_FILE).read_bytes(), "exported")
    assert {name: tensor.padded for name, tensor in signature.inputs.items()} == {"features": (4,)}
