"""A row's answer depends on that row alone: what the model's dimensions let through, and what is padded."""

from pathlib import Path

import pyarrow as pa
import pytest
import tensorflow as tf

from tfos_ml.data.arrow import to_numpy
from tfos_ml.data.casting import TensorInfo, row_shape
from tfos_ml.data.schema import ColumnSpec
from tfos_ml.errors import ShapeError
from tfos_ml.inference.input_tensors import InputBinding
from tfos_ml.inference.udf import ScoringSpec, score_here


@pytest.mark.parametrize(
    ("ndim", "shape", "expected"),
    [
        (0, (None, 1), ()),
        (0, (None, 4), None),
        (1, (None, None), (None,)),
        (1, (None, 2, 3), (6,)),
        (1, (None,), (1,)),
        (1, (None, None, 3), None),
        (2, (None, None, 3), (None, 3)),
        (2, (None, 4), None),
        (3, None, (None, None, None)),
    ],
)
def test_the_shape_of_a_row_follows_from_the_tensor(ndim, shape, expected):
    assert row_shape(ndim, TensorInfo("float32", shape)) == expected


def test_rows_are_padded_to_a_length_and_those_of_no_rows_have_their_width():
    spec = ColumnSpec("x", "c", "feature", "float32", 2)
    nested = pa.list_(pa.list_(pa.float32()))
    assert to_numpy(pa.array([[], []], nested), spec, 0, (None, 3)).shape == (2, 0, 3)
    padded = to_numpy(pa.array([[[1.0], [2.0, 3.0]], [[4.0]]], nested), spec, -1, (3, None))
    assert padded.tolist() == [[[1, -1], [2, 3], [-1, -1]], [[4, -1], [-1, -1], [-1, -1]]]


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Scores lists through a real SavedModel whose input has a shape; returns the prediction of each row."""
    saved: dict[tuple, str] = {}

    def save(shape):
        module = tf.Module()
        axes = list(range(1, len(shape)))

        def serve(x):
            """A mean, which padding changes, the shape that the row had in the model, and the rows of the call."""
            rows = tf.shape(x)[0]
            return {"mean": tf.reduce_mean(x, axes), "wide": tf.ones_like(x), "rows": tf.fill([rows], rows)}

        module.serve = tf.function(serve)
        path = str(tmp_path_factory.mktemp("model") / "m")
        tensor = tf.TensorSpec(shape, tf.float32, "x")
        tf.saved_model.save(module, path, signatures=module.serve.get_concrete_function(x=tensor))
        return path

    def score(rows, shape, batch_size=4, padded=None, output="mean", levels=None):
        path = saved.get(shape) or saved.setdefault(shape, save(shape))
        levels = levels or len(shape) - 1
        kind = pa.float32()
        for _ in range(levels):
            kind = pa.list_(kind)
        outputs = {"mean": (TensorInfo("float32", (None,)), pa.float32())}
        outputs["rows"] = (TensorInfo("int32", (None,)), pa.int32())
        outputs["wide"] = (TensorInfo("float32", shape), pa.list_(pa.float32()))
        tensor, field = outputs[output]
        binding = InputBinding("features", "x", TensorInfo("float32", shape, padded=padded))
        scoring = ScoringSpec(
            model=Path(path),
            signature_key="serving_default",
            tag="serve",
            inputs=(binding,),
            outputs={output: tensor},
            fields={output: field},
            names={output: "prediction"},
            batch_size=batch_size,
            handle_invalid="keep",
            pad_value=0,
        )
        return score_here(scoring, [pa.array(rows, kind)]).to_pylist()

    return score


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_width_that_the_model_fixes_holds_for_each_row(scored, batch_size):
    rows = [[1, 1, 1, 1], [1, 1, 1], [1, 1, 1, 1], [1, 1, 1]]
    with pytest.raises(ShapeError, match=r"'features' has rows of 3( to 4)? elements.*'x' expects float32\(batch, 4\)"):
        scored(rows, (None, 4), batch_size)
    with pytest.raises(ShapeError, match="rows of 5 elements.*4 in each row"):
        scored([[0] * 5], (None, 4), batch_size)
    with pytest.raises(ShapeError, match="rows of 3 to 6 elements.*6 in each row"):
        scored([[1] * 6, [1] * 3], (None, 2, 3), 2, levels=1)


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_where_the_model_fixes_no_width_neighbours_do_not_count(scored, batch_size):
    rows = [[6, 6, 6], [2], [3, 5], [4, 4, 4], None, [1]]
    assert scored(rows, (None, None), batch_size) == [6, 2, 4, 4, None, 1]
    assert scored(rows, (None, None), batch_size, output="wide")[:3] == [[1, 1, 1], [1], [1, 1]]
    nested = [[[6, 2], [4]], [[3]], [[9], [9]]]
    assert scored(nested, (None, None, None), batch_size) == [3, 3, 9]  # 4 is padded within its own row


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_rows_are_padded_as_those_that_the_model_was_trained_on(scored, batch_size):
    rows = [[6, 6], [2], [], [4, 4, 4, 4, 4]]
    assert scored(rows, (None, None), batch_size, padded=(4,)) == [3, 0.5, 0, 4]


def test_a_call_has_rows_of_the_batch_size_at_most_whatever_is_converted_at_once(scored):
    rows = [[float(i)] * 2 for i in range(7)]
    assert scored(rows, (None, 2), 3, output="rows") == [3, 3, 3, 3, 3, 3, 1]
    assert scored([None, *rows, None], (None, 2), 3, output="rows") == [None, 3, 3, 3, 3, 3, 3, 1, None]
    assert scored([], (None, 2), 3) == []
