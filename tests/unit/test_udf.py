import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyspark import SparkFiles
from pyspark.sql import types as t

from tfos_ml import TFModel
from tfos_ml.data.casting import TensorInfo, fit_to_tensor
from tfos_ml.errors import ModelError, ShapeError, SignatureError
from tfos_ml.inference import archive, publishing
from tfos_ml.inference.input_tensors import InputBinding, ModelInput
from tfos_ml.inference.prediction import PredictionSpec
from tfos_ml.inference.saved_model import SIGNATURE_FILE, Signature
from tfos_ml.inference.udf import (
    ScoringSpec,
    checked_output,
    decode_scoring,
    encode_scoring,
    output_array,
    output_type,
    run_model,
    score_here,
)
from tfos_ml.protocol.artifacts import Artifact

NAN, INF = float("nan"), float("inf")
OUTPUTS = {
    "int8": (pa.int8(), [-128, 127]),
    "uint8": (pa.int16(), [0, 255]),
    "uint16": (pa.int32(), [0, 2**16 - 1]),
    "uint32": (pa.int64(), [0, 2**32 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float16": (pa.float32(), [0.5, -65504.0]),
    "bfloat16": (pa.float32(), [0.5, -2.0]),
    "float64": (pa.float64(), [0.1, -1e300]),
    "bool": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["grüße 🎉", ""]),
}


def tensor_of(values, dtype, shape=(None,)):
    return tf.constant(fit_to_tensor(np.asarray(values), "column", "input", TensorInfo(dtype, shape)), dtype)


def input_tensors(binding, column, pad_value):
    return ModelInput(binding, column, pad_value).tensors(0, len(column))


class TestCasting:
    @pytest.mark.parametrize(
        ("values", "source", "target"),
        [
            ([-1, 2**31 - 1], "int64", "int32"),
            ([0, 255], "int64", "uint8"),
            ([2**62], "int64", "float64"),
            ([0.1, NAN, INF], "float32", "float64"),
            ([2.0, -3.0], "float64", "int64"),
            ([True, False], "bool", "float32"),
            ([0, 1], "int32", "bool"),
            ([0.5, NAN, -INF], "float32", "float16"),
            ([0.5, -2.0, NAN, INF], "float32", "bfloat16"),
        ],
    )
    def test_without_loss_is_done(self, values, source, target):
        found = tensor_of(np.array(values, source), target)
        assert found.dtype.name == target
        np.testing.assert_array_equal(found.numpy().astype(source), np.array(values, source))

    @pytest.mark.parametrize(
        ("values", "source", "target"),
        [
            ([1_700_000_000_123, 2**24 + 1, -1], "int64", "float32"),
            ([2**53 + 1, 2**63 - 1], "int64", "float64"),
            ([2**11 + 1], "int32", "bfloat16"),
        ],
    )
    def test_integers_are_rounded_to_floats_as_keras_rounds_them(self, values, source, target):
        found = tensor_of(np.array(values, source), target)
        np.testing.assert_array_equal(found, tf.cast(tf.constant(values, source), target))

    @pytest.mark.parametrize(
        ("values", "source", "target"),
        [
            ([256], "int64", "uint8"),
            ([70_000], "int64", "float16"),
            ([0.1], "float32", "bfloat16"),
            ([0.5], "float64", "int32"),
            ([0.5], "float32", "bool"),
            ([2], "int32", "bool"),
        ],
    )
    def test_with_loss_is_refused(self, values, source, target):
        with pytest.raises(ShapeError):
            tensor_of(np.array(values, source), target)


class TestShape:
    @pytest.mark.parametrize(
        ("received", "expected", "fitted"),
        [
            ((3,), (None,), (3,)),
            ((3,), (None, 1, 1), (3, 1, 1)),
            ((3, 1), (None,), (3,)),
            ((3, 4), (None, None), (3, 4)),
            ((3, 6), (None, 1, 2, 3), (3, 1, 2, 3)),
            ((3, 2, 5), (None, None, 5), (3, 2, 5)),
            ((3, 2, 5), None, (3, 2, 5)),
            ((0, 4), (None, 2, 2), (0, 2, 2)),
        ],
    )
    def test_that_fits_is_reshaped_row_major(self, received, expected, fitted):
        values = np.arange(int(np.prod(received)), dtype=np.float32).reshape(received)
        found = tensor_of(values, "float32", expected)
        assert found.shape == fitted
        assert found.numpy().ravel().tolist() == values.ravel().tolist()

    @pytest.mark.parametrize(
        ("received", "expected"),
        [
            ((3, 3), (None, 4)),
            ((3,), (None, None)),
            ((3, 2, 2), (None, 4)),
            ((3, 4), (None, None, 2)),
            ((3, 2, 3), (None, 3, 2)),
        ],
    )
    def test_that_does_not_fit_is_refused_with_both_shapes(self, received, expected):
        with pytest.raises(ShapeError) as caught:
            tensor_of(np.zeros(received, np.float32), "float32", expected)
        tensor = TensorInfo("float32", expected)
        message = f"Column 'column' has rows of shape {received[1:]}, but input 'input' expects {tensor}."
        assert str(caught.value) == message


def test_a_tensor_shows_what_is_known_of_it():
    assert str(TensorInfo("float32", (None, 28, None))) == "float32(batch, 28, ?)"
    assert str(TensorInfo("int64", None)) == "int64(?)"


def test_values_of_the_right_kind_and_shape_are_not_copied():
    values = np.ones((3, 2), np.float32)
    assert fit_to_tensor(values, "column", "input", TensorInfo("float32", (None, 2))) is values


def test_column_becomes_a_tensor_padded_and_cast():
    column = pa.array([[1, 2, 3], [4]], pa.list_(pa.int64()))
    found = input_tensors(InputBinding("c", "x", TensorInfo("float32", (None, None))), column, pad_value=-1)["x"]
    assert found.dtype == tf.float32
    assert found.numpy().tolist() == [[1, 2, 3], [4, -1, -1]]


def test_ragged_column_stays_ragged():
    binding = InputBinding("c", "x", TensorInfo("int64", (None, None), ragged=True))
    found = input_tensors(binding, pa.array([[1, 2, 3], [], [4]], pa.list_(pa.int32())), pad_value=-1)
    assert {name: tensor.numpy().tolist() for name, tensor in found.items()} == {
        "x": [1, 2, 3, 4],
        "x_row_splits": [0, 3, 3, 4],
    }
    with pytest.raises(ShapeError, match=r"has 0 levels of arrays, but input 'x' is ragged int64\(batch, \?\)"):
        input_tensors(binding, pa.array([1, 2]), pad_value=0)


def column_of(tensor, values, rows):
    return output_array("y", [checked_output("y", tensor, {"y": values}, rows)], output_type("y", tensor))


@pytest.mark.parametrize("dtype", OUTPUTS)
def test_an_output_becomes_an_array_of_its_type(dtype):
    arrow, samples = OUTPUTS[dtype]
    for inner, kind in (((), arrow), ((2, 2), pa.list_(pa.list_(arrow)))):
        tensor = TensorInfo(dtype, (None, *inner))
        values = np.resize(np.array(samples, dtype=object), (3, *inner))
        column = column_of(tensor, tf.constant(values.tolist(), dtype), 3)
        assert column.to_pylist() == values.tolist()
        assert column.type == output_type("y", tensor) == kind


def test_a_record_that_is_damaged_is_quoted_by_the_error():
    """TensorFlow quotes bytes that are no text, so that its own error cannot be shown."""

    def parse(x):
        return tf.io.parse_example(x, {"a": tf.io.FixedLenFeature([], tf.float32)})

    inputs = [InputBinding("records", "x", TensorInfo("string", (None,)))]
    with pytest.raises(ModelError, match=r"'records'.*Could not parse example input, value: .*xff"):
        run_model(parse, {"x": tf.constant([b"\xff\xfe"])}, inputs)


@pytest.mark.parametrize("shape", [(2,), (4, 1), (), (1, 3), (0,)])
def test_wrong_number_of_rows_is_refused_with_what_was_received(shape):
    tensor = TensorInfo("float32", (None, 1))
    with pytest.raises(SignatureError) as caught:
        column_of(tensor, tf.zeros(shape), 3)
    assert f"shape {shape} for output 'y', given 3 rows; expected float32(batch, 1)" in str(caught.value)


DAMAGES = [
    ("variables/variables.data-00000-of-00001", 100, "TensorFlow cannot load the SavedModel: .*copy the model again"),
    ("variables/variables.index", None, "TensorFlow cannot load the SavedModel: "),
    ("saved_model.pb", 300, r"saved_model\.pb is not a SavedModel, or is damaged"),
]


@pytest.mark.parametrize("head", [None, PredictionSpec("binary", True)])
def test_a_scoring_is_the_same_in_another_process(head):
    matrix = TensorInfo("float32", (None, 2, None), padded=(2, 3))
    inputs = (InputBinding("a", "x", matrix), InputBinding("b", "y", TensorInfo("string", None)))
    fields = {"y": pa.list_(pa.float32()), "z": pa.binary()}
    names = {"y": "prediction", "z": "\N{SNOWMAN}"}
    model = Path(os.fsdecode(b"/models/\xff"))
    scoring = ScoringSpec(
        Artifact("a"), "key", "serve", inputs, {"y": matrix}, fields, names, 10, "skip", 0.5, head, 0.25
    )
    assert decode_scoring(encode_scoring(scoring, model)) == dataclasses.replace(scoring, model=model)


class TestDamagedModel:
    """What does not load is an error; what was sent whole is unpacked again."""

    @pytest.fixture(scope="class")
    def saved(self, tmp_path_factory):
        module = tf.Module()
        module.weight = tf.Variable(tf.ones([1000]))
        module.serve = tf.function(lambda x: {"y": module.weight[0] * x})
        directory = str(tmp_path_factory.mktemp("saved") / "m")
        tensor = tf.TensorSpec([None], tf.float32, "x")
        tf.saved_model.save(module, directory, signatures=module.serve.get_concrete_function(x=tensor))
        return directory

    @pytest.fixture
    def damaged(self, saved, tmp_path):
        return Path(shutil.copytree(saved, tmp_path / "damaged"))

    @pytest.fixture
    def artifact(self, tmp_path, monkeypatch):
        """Delivers a model as Spark does."""
        monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
        monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)

        def deliver(directory):
            packed = archive.pack(str(directory), tmp_path)
            name = f"tfos_ml-{hashlib.sha256(packed.read_bytes()).hexdigest()}"
            return Artifact(packed.rename(tmp_path / name).name)

        yield deliver
        for users in archive._in_use.values():
            users.close()
        archive._in_use.clear()

    @staticmethod
    def score(model, value):
        x, kinds = TensorInfo("float32", (None,)), {"y": pa.float32()}
        scoring = ScoringSpec(
            model, "serving_default", "serve", (InputBinding("c", "x", x),), {"y": x}, kinds, {"y": "y"}, 10, "error", 0
        )
        return score_here(scoring, [pa.array([value], pa.float32())]).to_pylist()

    @pytest.mark.parametrize(("file", "size", "message"), DAMAGES)
    def test_is_an_error(self, damaged, artifact, file, size, message):
        (damaged / file).unlink() if size is None else os.truncate(damaged / file, size)
        with pytest.raises(ModelError, match=message):
            self.score(artifact(damaged), 1.0)

    def test_is_unpacked_again_if_it_was_sent_whole(self, saved, artifact):
        model = artifact(saved)
        graph = archive.unpacked(model) / "saved_model.pb"
        graph.write_bytes(bytes(graph.stat().st_size))
        assert self.score(model, 2.0) == [2.0]


def test_a_model_at_export_dir_is_fetched_once_by_it_and_its_copies(tmp_path, monkeypatch):
    fetched, fetch = [], publishing.fetch
    monkeypatch.setattr(publishing, "fetch", lambda *args: fetched.append(args) or fetch(*args))
    floats = TensorInfo("float32", (None,))
    signature = {"serving_default": dataclasses.asdict(Signature({"a": floats}, {"y": floats}))}
    (tmp_path / SIGNATURE_FILE).write_text(json.dumps(signature))
    model = TFModel(exportDir=str(tmp_path), featuresCol="c")
    columns = t.StructType().add("c", "float")
    for _ in range(3):
        model.transformSchema(columns)
        model.signature()
        model.copy({model.predictionCol: "p"}).transformSchema(columns)
    assert len(fetched) == 1
