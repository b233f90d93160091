"""Large models: the driver's memory does not depend on their size, and a worker has little more than plain Keras."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path

import pytest
from elsewhere import run_elsewhere
from pyspark.sql import functions as F

import tfos_ml.mlflow
from tfos_ml import KerasEstimator, TFModel
from tfos_ml.agent import node_result
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.inference.archive import pack
from tfos_ml.inference.saved_model import SIGNATURE_FILE
from tfos_ml.protocol import results
from tfos_ml.protocol.cluster_template import make_template

MODEL, GROWTH = 200 << 20, 100 << 20
SIGNATURE = {
    "serving_default": {
        "inputs": {"features": {"dtype": "float32", "shape": [None, 2], "ragged": False}},
        "outputs": {"y": {"dtype": "float32", "shape": [None], "ragged": False}},
    }
}


def memory(entry):
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{entry}:\s+(\d+) kB", status)[1]) << 10


class Grown:
    """By how much the memory of this process has exceeded, at any time in the block, what it was at its beginning."""

    def __enter__(self):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        self._before = memory("VmRSS")
        return self

    def __exit__(self, *_):
        self.bytes = memory("VmHWM") - self._before


@pytest.fixture
def directory(tmp_path):
    """What looks like a SavedModel, and is not loaded."""
    model = tmp_path / "model"
    (model / SIGNATURE_FILE).parent.mkdir(parents=True, exist_ok=True)
    (model / "variables").mkdir()
    (model / SIGNATURE_FILE).write_text(json.dumps(SIGNATURE))
    (model / "saved_model.pb").write_bytes(b"")
    with open(model / "variables" / "data", "wb") as file:
        for _ in range(MODEL >> 20):
            file.write(os.urandom(1 << 20))
    return model


@pytest.mark.corner("Large models")
def test_stages_and_mlflow_copy_a_model_from_file_to_file(spark, directory, tmp_path):
    rows = spark.range(1).select(F.array(F.lit(1.0), F.lit(2.0)).alias("features"))
    with Grown() as grown:
        model = TFModel(exportDir=str(directory))
        model.transform(rows)  # sends it to the executors; nothing is computed
        model.save(str(tmp_path / "stage"))
        loaded = TFModel.load(str(tmp_path / "stage"))
        tfos_ml.mlflow.save_model(loaded, str(tmp_path / "logged"))
        again = tfos_ml.mlflow.load_model(str(tmp_path / "logged"))
    assert grown.bytes < GROWTH
    assert again._packed().file.digest == loaded._packed().file.digest == model._packed().file.digest


def test_results_of_a_node_come_from_file_to_file(directory, tmp_path):
    packed = pack(str(directory), tmp_path)
    server = ControlServer("127.0.0.1", make_template(1), lambda: True)
    try:
        with Grown() as grown:
            rows = partial(results.rows_of_file, 0, results.MODEL, packed)
            node_result.deliver(rows, 0, server.address, patience=30.0)
        assert grown.bytes < GROWTH
        assert server.nodes.results().model.size == packed.stat().st_size
    finally:
        server.close()


WIDTH, DEPTH = 2048, 6
WEIGHTS = DEPTH * WIDTH**2 * 4  # bytes


def large_model(notes):
    """A model with a layer of its own, so that a step is tried; this process notes what it has in memory."""
    import keras

    class Wide(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], WIDTH))

        def call(self, x):
            return keras.ops.tanh(x @ self.kernel)

    Path("/proc/self/clear_refs").write_text("5")
    (Path(notes) / f"{os.getpid()}-before").write_text(str(memory("VmRSS")))
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *(Wide() for _ in range(DEPTH)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def noting_peak(notes):
    import keras

    def note(logs):
        (Path(notes) / f"{os.getpid()}-peak").write_text(str(memory("VmHWM")))

    return keras.callbacks.LambdaCallback(on_train_end=note)


def growths(notes):
    """By how much each process that has trained has grown since the beginning of its model."""
    peaks = [file for file in Path(notes).iterdir() if file.name.endswith("-peak")]
    return [int(p.read_text()) - int(p.with_name(p.name.replace("peak", "before")).read_text()) for p in peaks]


def train_alone(notes):
    import numpy as np

    callbacks = [noting_peak(notes)]
    large_model(notes).fit(np.ones((16, WIDTH), "f"), np.ones(16), 8, epochs=2, verbose=0, callbacks=callbacks)


def test_a_worker_keeps_few_copies_of_the_weights_beside_what_plain_keras_has(spark, tmp_path):
    """Nothing faster proves it: what a tried step and checkpoints keep is memory of TensorFlow's, in its processes."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    for notes in (alone, together):
        notes.mkdir()
    run_elsewhere("import sys, test_large_models as t; t.train_alone(sys.argv[1])", str(alone))
    rows = spark.range(0, 16, 1, 2).select(
        F.array_repeat(F.lit(1.0).cast("float"), WIDTH).alias("x"), F.lit(1.0).alias("y")
    )
    KerasEstimator(
        model=partial(large_model, str(together)),
        featuresCol="x",
        labelCol="y",
        clusterSize=2,
        epochs=2,
        batchSize=8,
        modelDir=str(tmp_path / "checkpoints"),
        callbacks=[noting_peak(str(together))],
        verbose=0,
    ).fit(rows)
    (plain,), workers = growths(alone), growths(together)
    assert len(workers) == 2
    # Peaks of equal runs differ by a copy of the weights and more, so benchmarks/size.py has the aim of one copy.
    # A try that keeps the gradients of its steps exceeds this.
    assert max(workers) < plain + 4 * WEIGHTS, f"plain {plain >> 20} MB, workers {[w >> 20 for w in workers]} MB"
