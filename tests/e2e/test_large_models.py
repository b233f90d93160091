"""A model on its way through the driver: from file to file, so that the driver's memory does not depend on its size."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import functions as F

import tfos_ml.mlflow
from tfos_ml import TFModel
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
