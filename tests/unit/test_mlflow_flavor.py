"""Models of all kinds of inputs as MLflow models: saved, loaded and called without Spark."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from elsewhere import interpreter_with

from tfos_ml import TFModel, errors
from tfos_ml.inference.saved_model import write_signature


class Everything(tf.Module):
    """Two outputs of five inputs, of which each has another shape."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.float32, "scalar"),
            tf.TensorSpec([None, None], tf.int64, "array"),
            tf.TensorSpec([None, 2, 2], tf.float32, "nested"),
            tf.TensorSpec([None], tf.string, "text"),
            tf.TensorSpec([None], tf.string, "blob"),
        ]
    )
    def serve(self, scalar, array, nested, text, blob):
        total = scalar + tf.cast(tf.reduce_sum(array, 1), tf.float32) + tf.reduce_sum(nested, [1, 2])
        return {"total": total, "joined": tf.strings.join([text, blob]), "twice": 2 * nested, "bytes": blob}


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("export") / "saved_model")
    module = Everything()
    tf.saved_model.save(module, path, signatures={"serving_default": module.serve})
    return path


@pytest.fixture(scope="module")
def doubling(tmp_path_factory):
    """A SavedModel that doubles arrays of two numbers."""
    path = str(tmp_path_factory.mktemp("doubling") / "saved_model")
    module = tf.Module()
    module.serve = tf.function(lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])
    tf.saved_model.save(module, path, signatures={"serving_default": module.serve})
    write_signature(path, "serving_default")  # as an export does; or saving would load TensorFlow
    return path


INPUTS = ("scalar", "array", "nested", "text", "blob")
ROWS = pd.DataFrame(
    {
        "scalar": [1.5, -2.0, 0.0],
        "array": [[1, 2], [3, 4], [5, 6]],
        "nested": [[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]],
        "text": ["a", "ü", ""],
        "blob": [b"x", b"y", b"z"],
    }
)
EXPECTED = {
    "total": [14.5, 6.0, 15.0],
    "joined": ["ax", "üy", "z"],
    "twice": (2 * np.array(ROWS.nested.tolist())).tolist(),
    "bytes": [b"x", b"y", b"z"],
}


def make_model(saved_model):
    return TFModel(
        exportDir=saved_model,
        inputMapping={name: name for name in INPUTS},
        outputMapping={name: name for name in EXPECTED},
        binaryOutputs=["bytes"],
        predictBatchSize=2,
    )


def assert_expected(scored):
    got = {name: json.loads(json.dumps(scored[name].tolist(), default=plain)) for name in EXPECTED}
    assert got == {name: json.loads(json.dumps(values, default=plain)) for name, values in EXPECTED.items()}


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value.decode()


def test_a_saved_model_takes_lists_arrays_and_what_a_client_of_the_server_sends(saved_model, tmp_path):
    import mlflow
    from mlflow.models.utils import convert_input_example_to_serving_input
    from mlflow.pyfunc.scoring_server import infer_and_parse_data

    import tfos_ml.mlflow

    path = str(tmp_path / "model")
    tfos_ml.mlflow.save_model(make_model(saved_model), path, input_example=ROWS)
    signature = mlflow.models.Model.load(path).signature
    assert {c.name: str(c.type).replace("DataType.", "") for c in signature.inputs} == {
        "scalar": "double",
        "array": "Array(long)",
        "nested": "Array(Array(double))",
        "text": "string",
        "blob": "binary",
    }
    assert {c.name: str(c.type).replace("DataType.", "") for c in signature.outputs} == {
        "total": "float",
        "joined": "string",
        "twice": "Array(Array(float))",
        "bytes": "binary",
    }
    loaded = mlflow.pyfunc.load_model(path)
    assert_expected(loaded.predict(ROWS))
    with pytest.raises(errors.NullValueError, match="Column 'text' has 1 null"):
        loaded.predict(ROWS.assign(text=["a", None, ""]))
    arrays = {name: [np.array(value) for value in ROWS[name]] for name in ("array", "nested")}
    assert_expected(loaded.predict(ROWS.assign(**arrays, scalar=ROWS.scalar.astype("float32"))))
    sent = json.loads(convert_input_example_to_serving_input(ROWS))
    assert_expected(loaded.predict(infer_and_parse_data(sent, signature.inputs)))


def test_password_of_the_export_dir_is_not_saved_with_the_model(saved_model, tmp_path):
    import tfos_ml.mlflow

    model = make_model(saved_model)
    files = model._files()
    model.setExportDir("s3://key:hunter2@bucket/models/1")
    model._restore(files, {})  # as a stage that was saved, whose SavedModel is not read from there again
    tfos_ml.mlflow.save_model(model, str(tmp_path / "model"))
    assert not [path for path in (tmp_path / "model").rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    with pytest.warns(UserWarning, match="without the secrets that these Params may have: exportDir"):
        loaded = tfos_ml.mlflow.load_model(str(tmp_path / "model"))
    assert loaded.getExportDir() == "s3://bucket/models/1"
    assert str(loaded.signature()) == str(make_model(saved_model).signature())


PREDICT = """
import importlib.util, sys
import mlflow.pyfunc, numpy

assert importlib.util.find_spec(sys.argv[2]) is None
scored = mlflow.pyfunc.load_model(sys.argv[1]).predict({"features": numpy.array([[1.0, 2.0], [3.0, 4.0]])})
print([y.tolist() for y in scored.y])
"""


def run(python, program, *arguments, path=""):
    """What a program printed, whose PYTHONPATH is `path`."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    command = [python, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.chaos  # a process of its own; make test-matrix runs it, too
@pytest.mark.corner("MLflow: served where nothing but the logged requirements is installed")
def test_a_model_is_served_where_there_are_its_requirements_alone(doubling, tmp_path):
    """Red before: MissingPackageError, tfos_ml.common.spark_api imported pyspark."""
    import tfos_ml.mlflow

    tfos_ml.mlflow.save_model(TFModel(exportDir=doubling, outputMapping={"y": "y"}), str(tmp_path / "model"))
    wanted = (tmp_path / "model" / "requirements.txt").read_text().split()
    python, root = interpreter_with(tmp_path / "venv", *wanted), Path(tfos_ml.__file__).parents[1]
    path = root if (root / "setup.cfg").exists() else ""  # where it was installed as a link
    assert run(python, PREDICT, tmp_path / "model", "pyspark", path=path).splitlines()[-1] == "[[2.0, 4.0], [6.0, 8.0]]"
