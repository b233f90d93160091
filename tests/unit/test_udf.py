import re

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tfos_ml.data.casting import TensorInfo, fit_to_tensor
from tfos_ml.errors import ModelError, ShapeError
from tfos_ml.inference.input_tensors import InputBinding, ModelInput
from tfos_ml.inference.udf import checked_output, output_array, output_type, run_model

NAN, INF = float("nan"), float("inf")
OUTPUTS = {
    "uint8": (pa.int16(), [0, 255]),
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


def test_what_casts_without_loss_is_cast_integers_are_rounded_as_by_keras_and_other_losses_are_refused():
    for values, source, target in (
        ([-1, 2**31 - 1], "int64", "int32"),
        ([0.1, NAN, INF], "float32", "float64"),
        ([2.0, -3.0], "float64", "int64"),
        ([0, 1], "int32", "bool"),
        ([0.5, -2.0, NAN, INF], "float32", "bfloat16"),
    ):
        found = tensor_of(np.array(values, source), target)
        assert found.dtype.name == target
        np.testing.assert_array_equal(found.numpy().astype(source), np.array(values, source))
    for values, target in (([1_700_000_000_123, 2**24 + 1, -1], "float32"), ([2**53 + 1, 2**63 - 1], "float64")):
        found = tensor_of(np.array(values), target)
        np.testing.assert_array_equal(found, tf.cast(tf.constant(values, "int64"), target))
    for values, target in (([256], "uint8"), ([70_000], "float16"), ([0.5], "int32")):
        with pytest.raises(ShapeError):
            tensor_of(np.array(values), target)


def test_what_fits_is_reshaped_row_major_and_else_both_shapes_are_told():
    for received, expected, fitted in (
        ((3,), (None, 1, 1), (3, 1, 1)),
        ((3, 1), (None,), (3,)),
        ((3, 6), (None, 1, 2, 3), (3, 1, 2, 3)),
        ((3, 2, 5), (None, None, 5), (3, 2, 5)),
        ((0, 4), (None, 2, 2), (0, 2, 2)),
    ):
        values = np.arange(int(np.prod(received)), dtype=np.float32).reshape(received)
        found = tensor_of(values, "float32", expected)
        assert found.shape == fitted
        assert found.numpy().ravel().tolist() == values.ravel().tolist()
    for shape in ((None, 4), (None, None, 2)):
        message = f"Column 'column' has rows of shape (3,), but input 'input' expects {TensorInfo('float32', shape)}."
        with pytest.raises(ShapeError, match=re.escape(message)):
            tensor_of(np.zeros((3, 3), np.float32), "float32", shape)


def test_a_column_becomes_a_tensor_padded_and_cast_or_ragged():
    def tensors(column, pad_value=-1, **kind):
        binding = InputBinding("c", "x", TensorInfo(shape=(None, None), **kind))
        found = ModelInput(binding, column, pad_value).tensors(0, len(column))
        return {name: (tensor.dtype.name, tensor.numpy().tolist()) for name, tensor in found.items()}

    column = pa.array([[1, 2, 3], [], [4]], pa.list_(pa.int32()))
    padded = [[1, 2, 3], [-1, -1, -1], [4, -1, -1]]
    assert tensors(column, dtype="float32") == {"x": ("float32", padded)}
    ragged = {"x": ("int64", [1, 2, 3, 4]), "x_row_splits": ("int64", [0, 3, 3, 4])}
    assert tensors(column, dtype="int64", ragged=True) == ragged
    with pytest.raises(ShapeError, match=r"has 0 levels of arrays, but input 'x' is ragged int64\(batch, \?\)"):
        tensors(pa.array([1, 2]), dtype="int64", ragged=True)


def test_an_output_becomes_an_array_of_its_type():
    for dtype, (arrow, samples) in OUTPUTS.items():
        for inner, kind in (((), arrow), ((2, 2), pa.list_(pa.list_(arrow)))):
            tensor = TensorInfo(dtype, (None, *inner))
            values = np.resize(np.array(samples, dtype=object), (3, *inner))
            given = checked_output("y", tensor, {"y": tf.constant(values.tolist(), dtype)}, 3)
            column = output_array("y", [given], output_type("y", tensor))
            assert column.to_pylist() == values.tolist()
            assert column.type == output_type("y", tensor) == kind


def test_a_record_that_is_damaged_is_quoted_by_the_error():
    """TensorFlow quotes bytes that are no text, so that its own error cannot be shown."""

    def parse(x):
        return tf.io.parse_example(x, {"a": tf.io.FixedLenFeature([], tf.float32)})

    inputs = [InputBinding("records", "x", TensorInfo("string", (None,)))]
    with pytest.raises(ModelError, match=r"'records'.*Could not parse example input, value: .*xff"):
        run_model(parse, {"x": tf.constant([b"\xff\xfe"])}, inputs)
