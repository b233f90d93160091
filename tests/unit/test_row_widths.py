"""A row's answer depends on that row alone: what the model's dimensions let through, and what is padded."""

from pathlib import Path

import pyarrow as pa
import pytest
import tensorflow as tf

from tfos_ml.data.casting import TensorInfo
from tfos_ml.errors import ShapeError
from tfos_ml.inference.input_tensors import InputBinding
from tfos_ml.inference.udf import ScoringSpec, score_here


@pytest.fixture
def scored(tmp_path):
    """Scores lists through a real SavedModel whose input has a shape; returns the prediction of each row."""

    def score(rows, shape, batch_size=4, padded=None, output="mean"):
        path = tmp_path / str(shape)
        if not path.exists():
            tensor = tf.TensorSpec(shape, tf.float32, "x")
            module = tf.Module()
            module.serve = tf.function(serve)
            tf.saved_model.save(module, str(path), signatures=module.serve.get_concrete_function(x=tensor))
        kind = pa.float32()
        for _ in shape[1:]:
            kind = pa.list_(kind)
        scoring = ScoringSpec(
            model=Path(path),
            signature_key="serving_default",
            tag="serve",
            inputs=(InputBinding("features", "x", TensorInfo("float32", shape, padded=padded)),),
            outputs={output: TensorInfo("float32", (None,))},
            fields={output: pa.float32()},
            names={output: "prediction"},
            batch_size=batch_size,
            handle_invalid="keep",
            pad_value=0,
        )
        return score_here(scoring, [pa.array(rows, kind)]).to_pylist()

    return score


def serve(x):
    """A mean, which padding changes, and the rows of the call."""
    rows = tf.shape(x)[0]
    return {"mean": tf.reduce_mean(x, list(range(1, len(x.shape)))), "rows": tf.fill([rows], tf.cast(rows, tf.float32))}


def test_a_width_that_the_model_fixes_holds_for_each_row(scored):
    rows = [[1, 1, 1, 1], [1, 1, 1], [1, 1, 1, 1], [1, 1, 1]]
    with pytest.raises(ShapeError, match=r"'features' has rows of 3 to 4 elements.*'x' expects float32\(batch, 4\)"):
        scored(rows, (None, 4))
    with pytest.raises(ShapeError, match="rows of 5 elements.*4 in each row"):
        scored([[0] * 5], (None, 4))


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_where_the_model_fixes_no_width_neighbours_do_not_count(scored, batch_size):
    rows = [[6, 6, 6], [2], [3, 5], [4, 4, 4], None, [1]]
    assert scored(rows, (None, None), batch_size) == [6, 2, 4, 4, None, 1]
    nested = [[[6, 2], [4]], [[3]], [[9], [9]]]
    assert scored(nested, (None, None, None), batch_size) == [3, 3, 9]  # 4 is padded within its own row
    rows = [[6, 6], [2], [], [4, 4, 4, 4, 4]]  # as in training
    assert scored(rows, (None, None), batch_size, padded=(4,)) == [3, 0.5, 0, 4]


def test_a_call_has_rows_of_the_batch_size_at_most_whatever_is_converted_at_once(scored):
    rows = [[float(i)] * 2 for i in range(7)]
    assert scored([None, *rows, None], (None, 2), 3, output="rows") == [None, 3, 3, 3, 3, 3, 3, 1, None]
    assert scored([], (None, 2), 3) == []
