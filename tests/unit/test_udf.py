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
from pyspark.sql.pandas.types import from_arrow_type

from tfos_ml import TFModel
from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.schema import ColumnSpec
from tfos_ml.errors import ModelError, ShapeError, SignatureError
from tfos_ml.inference import archive, publishing
from tfos_ml.inference.input_tensors import InputBinding, array_tensor, input_tensors
from tfos_ml.inference.saved_model import SIGNATURE_FILE, Signature
from tfos_ml.inference.udf import (
    ScoringSpec,
    check_binding,
    checked_output,
    output_array,
    output_type,
    score_here,
)
from tfos_ml.protocol.artifacts import Artifact

NAN, INF = float("nan"), float("inf")
OUTPUTS = {
    "int8": (t.ByteType(), pa.int8(), [-128, 127]),
    "uint8": (t.ShortType(), pa.int16(), [0, 255]),
    "int16": (t.ShortType(), pa.int16(), [-(2**15), 2**15 - 1]),
    "uint16": (t.IntegerType(), pa.int32(), [0, 2**16 - 1]),
    "int32": (t.IntegerType(), pa.int32(), [-(2**31), 2**31 - 1]),
    "uint32": (t.LongType(), pa.int64(), [0, 2**32 - 1]),
    "int64": (t.LongType(), pa.int64(), [-(2**63), 2**63 - 1]),
    "float16": (t.FloatType(), pa.float32(), [0.5, -65504.0]),
    "bfloat16": (t.FloatType(), pa.float32(), [0.5, -2.0]),
    "float32": (t.FloatType(), pa.float32(), [0.5, INF]),
    "float64": (t.DoubleType(), pa.float64(), [0.1, -1e300]),
    "bool": (t.BooleanType(), pa.bool_(), [True, False]),
    "string": (t.StringType(), pa.string(), ["grüße 🎉", ""]),
}


def tensor_of(values, dtype, shape=(None,)):
    return array_tensor(np.asarray(values), "column", "input", TensorInfo(dtype, shape))


class TestCasting:
    @pytest.mark.parametrize(
        ("values", "source", "target"),
        [
            ([-1, 2**31 - 1], "int32", "int64"),
            ([-1, 2**31 - 1], "int64", "int32"),
            ([0, 255], "int64", "uint8"),
            ([127, 0], "int8", "uint8"),
            ([2**24, -(2**24)], "int64", "float32"),
            ([2**31 - 1], "int32", "float64"),
            ([2**62], "int64", "float64"),
            ([0.1, NAN, INF], "float32", "float64"),
            ([2.0, -3.0], "float64", "int64"),
            ([True, False], "bool", "int32"),
            ([True, False], "bool", "float32"),
            ([0, 1], "int32", "bool"),
            ([0.5, NAN, -INF], "float32", "float16"),
        ],
    )
    def test_without_loss_is_done(self, values, source, target):
        found = tensor_of(np.array(values, source), target)
        assert found.dtype.name == target
        np.testing.assert_array_equal(found.numpy().astype(source), np.array(values, source))

    @pytest.mark.parametrize("values", [[0.1, -1e-3], [NAN, INF, -INF], [1e-300]])
    def test_from_float64_to_float32_rounds(self, values):
        found = tensor_of(np.array(values, "float64"), "float32")
        np.testing.assert_array_equal(found.numpy(), np.array(values, "float32"))

    @pytest.mark.parametrize(
        ("values", "source", "target"),
        [
            ([2**31], "int64", "int32"),
            ([256], "int64", "uint8"),
            ([2**24 + 1], "int64", "float32"),
            ([2**53 + 1], "int64", "float64"),
            ([2**63 - 1], "int64", "float64"),
            ([0.1], "float32", "float16"),
            ([0.5], "float64", "int32"),
            ([0.5], "float32", "bool"),
            ([2], "int32", "bool"),
        ],
    )
    def test_with_loss_is_refused(self, values, source, target):
        with pytest.raises(ShapeError):
            tensor_of(np.array(values, source), target)

    @pytest.mark.parametrize(
        ("source", "target"), [("int8", "uint8"), ("int32", "uint32"), ("int64", "uint64"), ("int64", "uint8")]
    )
    def test_negative_number_does_not_become_an_unsigned_one(self, source, target):
        with pytest.raises(ShapeError):
            tensor_of(np.array([-1], source), target)

    @pytest.mark.parametrize("value", [NAN, INF, 1e30])
    @pytest.mark.parametrize("target", ["int32", "int64"])
    def test_float_that_is_no_integer_is_refused(self, value, target):
        with pytest.raises(ShapeError):
            tensor_of(np.array([value], "float64"), target)

    def test_float64_beyond_the_range_of_float32_is_refused(self):
        with pytest.raises(ShapeError):
            tensor_of(np.array([1e300], "float64"), "float32")

    def test_error_names_column_expected_and_received(self):
        with pytest.raises(ShapeError, match=r"'column' \(int64\) .* 'input' expects int32\(batch, 2\)"):
            tensor_of(np.array([[2**40, 1]]), "int32", (None, 2))

    def test_text_arrives_byte_by_byte(self):
        found = tensor_of(np.array(["grüße 🎉", b"\0\xff\0", ""], dtype=object), "string")
        assert found.numpy().tolist() == ["grüße 🎉".encode(), b"\0\xff\0", b""]

    @pytest.mark.parametrize(
        ("values", "dtype"), [(np.array([1, 2]), "string"), (np.array(["1", "x"], dtype=object), "float32")]
    )
    def test_text_and_numbers_are_not_taken_for_each_other(self, values, dtype):
        with pytest.raises(ShapeError):
            tensor_of(values, dtype)


class TestShape:
    @pytest.mark.parametrize(
        ("received", "expected", "fitted"),
        [
            ((3,), (None,), (3,)),
            ((3,), (None, 1), (3, 1)),
            ((3,), (None, 1, 1), (3, 1, 1)),
            ((3, 1), (None,), (3,)),
            ((3, 4), (None, 4), (3, 4)),
            ((3, 4), (None, None), (3, 4)),
            ((3, 4), (None, 2, 2), (3, 2, 2)),
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
            ((3,), (None, 2)),
            ((3,), (None, None)),
            ((3, 2), (None,)),
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


def spec(dtype):
    return ColumnSpec("x", "c", "feature", dtype, 1)


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


@pytest.mark.parametrize(("dtype", "tensor"), [("string", "float32"), ("binary", "int64"), ("float32", "string")])
def test_text_bound_to_numbers_is_refused_on_the_driver(dtype, tensor):
    with pytest.raises(SignatureError, match=f"Column 'c' holds {dtype}, but input 'x' expects {tensor}"):
        check_binding(spec(dtype), TensorInfo(tensor, (None, None)))


@pytest.mark.parametrize(("dtype", "tensor"), [("string", "string"), ("binary", "string"), ("int8", "float64")])
def test_columns_that_may_fit_can_be_bound(dtype, tensor):
    check_binding(spec(dtype), TensorInfo(tensor, (None, None)))


def column_of(tensor, values, rows):
    return output_array("y", [checked_output("y", tensor, {"y": values}, rows)], output_type("y", tensor))


def test_strings_are_text_or_bytes():
    tensor, values = TensorInfo("string", (None, 2)), tf.constant([[b"\xff", b"a"]])
    with pytest.raises(SignatureError, match="'y' returned bytes that are no UTF-8 text: .* Name it in binaryOutputs"):
        column_of(tensor, values, 1)
    kind = output_type("y", tensor, is_binary=True)
    assert output_array("y", [values.numpy()], kind).to_pylist() == [[b"\xff", b"a"]]
    with pytest.raises(SignatureError, match=r"binaryOutputs names 'y', but that is int8\(batch\)"):
        output_type("y", TensorInfo("int8", (None,)), is_binary=True)


@pytest.mark.parametrize("dtype", OUTPUTS)
@pytest.mark.parametrize("inner", [(), (2,), (2, 2), (1, 2, 1)])
class TestOutput:
    def test_becomes_an_array_of_its_type(self, dtype, inner):
        spark, arrow, samples = OUTPUTS[dtype]
        tensor = TensorInfo(dtype, (None, *inner))
        values = np.resize(np.array(samples, dtype=object), (3, *inner))
        column = column_of(tensor, tf.constant(values.tolist(), dtype), 3)
        assert column.to_pylist() == values.tolist()
        for _ in inner:
            spark, arrow = t.ArrayType(spark), pa.list_(arrow)
        assert column.type == output_type("y", tensor) == arrow
        assert from_arrow_type(column.type) == spark

    def test_of_no_rows_is_empty_with_the_same_type(self, dtype, inner):
        tensor = TensorInfo(dtype, (None, *inner))
        column = column_of(tensor, tf.zeros((0, *inner), dtype), 0)
        assert len(column) == 0
        assert column.type == output_type("y", tensor)


@pytest.mark.parametrize("shape", [(3, 0), (3, 2, 0), (3, 0, 2)])
def test_dimensions_of_length_0_give_empty_lists(shape):
    column = column_of(TensorInfo("float32", (None,) * len(shape)), tf.zeros(shape), 3)
    assert column.to_pylist() == np.zeros(shape).tolist()


@pytest.mark.parametrize("shape", [(2,), (4, 1), (), (1, 3), (0,)])
def test_wrong_number_of_rows_is_refused_with_what_was_received(shape):
    tensor = TensorInfo("float32", (None, 1))
    with pytest.raises(SignatureError) as caught:
        column_of(tensor, tf.zeros(shape), 3)
    assert f"shape {shape} for output 'y', given 3 rows; expected float32(batch, 1)" in str(caught.value)


@pytest.mark.parametrize(("dtype", "shape"), [("float32", None), ("float32", ())])
def test_output_without_a_batch_dimension_has_no_column(dtype, shape):
    with pytest.raises(SignatureError, match="Output 'y' is .* needs a known rank"):
        output_type("y", TensorInfo(dtype, shape))


@pytest.mark.parametrize("dtype", ["uint64", "complex64", "qint8", "variant"])
def test_output_that_spark_has_no_type_for_is_refused(dtype):
    with pytest.raises(SignatureError, match=f"Output 'y' is {dtype}.* Cast it in the model"):
        output_type("y", TensorInfo(dtype, (None,)))


DAMAGES = [
    ("variables/variables.data-00000-of-00001", 100, r"variables/variables\.data-00000-of-00001 \(100 bytes\)"),
    ("variables/variables.data-00000-of-00001", None, r"variables/variables\.data-00000-of-00001 \(missing\)"),
    ("variables/variables.index", 50, r"variables/variables\.index \(50 bytes\)"),
    ("variables/variables.index", None, r"variables/variables\.index \(missing\)"),
    ("saved_model.pb", 300, r"saved_model\.pb is not a SavedModel, or is damaged"),
]


class TestDamagedModel:
    """What does not load is named, file by file; what was sent whole is extracted again."""

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
    def scoring(model):
        x = TensorInfo("float32", (None,))
        kinds = {"y": pa.float32()}
        return ScoringSpec(
            model, "serving_default", "serve", (InputBinding("c", "x", x),), {"y": x}, kinds, {"y": "y"}, 10, "error", 0
        )

    def score(self, model, value):
        scoring = self.scoring(model)
        return score_here(scoring, [pa.array([value], pa.float32())]).to_pylist()

    @pytest.mark.parametrize(("file", "size", "message"), DAMAGES)
    def test_transform_names_the_file(self, damaged, artifact, file, size, message):
        (damaged / file).unlink() if size is None else os.truncate(damaged / file, size)
        with pytest.raises(ModelError, match=message):
            self.score(artifact(damaged), 1.0)

    @pytest.mark.parametrize(("file", "size", "message"), DAMAGES)
    def test_predict_names_the_file(self, damaged, file, size, message):
        (damaged / file).unlink() if size is None else os.truncate(damaged / file, size)
        with pytest.raises(ModelError, match=message):
            TFModel(exportDir=str(damaged), featuresCol="x").predict(np.ones(2, np.float32))

    def test_copy_that_was_damaged_on_the_host_is_extracted_again(self, saved, artifact):
        sent = artifact(saved)
        data = archive.unpacked(sent) / "variables/variables.data-00000-of-00001"
        data.write_bytes(bytes(data.stat().st_size))
        assert self.score(sent, 3.0) == [3.0]


class TestExportDir:
    """A model at exportDir is fetched and packed once, for as long as it does not change."""

    @pytest.fixture
    def fetched(self, monkeypatch):
        found = []
        fetch = publishing.fetch
        monkeypatch.setattr(publishing, "fetch", lambda *args: found.append(args) or fetch(*args))
        return found

    @pytest.fixture
    def exported(self, tmp_path):
        directory = tmp_path / "m"
        directory.mkdir()
        self.write(directory, "a")
        return directory

    @staticmethod
    def write(directory, name):
        signature = Signature({name: TensorInfo("float32", (None,))}, {"y": TensorInfo("float32", (None,))})
        (directory / SIGNATURE_FILE).write_text(json.dumps({"serving_default": signature.to_json()}))

    def test_is_fetched_once_by_a_model_and_its_copies(self, exported, fetched):
        model = TFModel(exportDir=str(exported), featuresCol="c")
        columns = t.StructType().add("c", "float")
        for _ in range(3):
            model.transformSchema(columns)
            model.signature()
            model.copy({model.predictionCol: "p"}).transformSchema(columns)
        assert len(fetched) == 1

    def test_is_fetched_once_by_copies_alone(self, exported, fetched):
        """Red before: each ``transform(df, params)`` copies the model, and fetched it again."""
        model = TFModel(exportDir=str(exported), featuresCol="c")
        for _ in range(3):
            model.copy({model.predictionCol: "p"}).transformSchema(t.StructType().add("c", "float"))
        assert len(fetched) == 1

    def test_is_fetched_again_when_it_has_changed_or_another_is_named(self, exported, fetched, tmp_path):
        model = TFModel(exportDir=str(exported))
        assert list(model.signature().inputs) == ["a"]
        self.write(exported, "longer")
        assert list(model.signature().inputs) == ["longer"]
        shutil.copytree(exported, tmp_path / "other")
        model.setExportDir(str(tmp_path / "other")).signature()
        assert len(fetched) == 3

    def test_that_is_gone_is_an_error(self, exported):
        model = TFModel(exportDir=str(exported))
        model.signature()
        shutil.rmtree(exported)
        with pytest.raises(ModelError, match="There is no SavedModel at exportDir"):
            model.signature()
