"""What a worker draws for its rows is what plain Keras draws for them among all rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfos_ml.keras.random_draws import LARGE_ROW, RowsOfStep

ROWS = 41
PLACES = [*range(40, 20, -2), 3, 0, 7, 1, 33, 12, 5]  # one more than are drawn in a turn


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "noise_shape", "alone"),
    [
        ((LARGE_ROW,), None, True),
        ((3, 64, 64), None, True),
        ((96, 96, 3), (None, 96, 96, 1), True),
        ((LARGE_ROW + 2,), None, False),  # whose rows begin within the numbers of one counter
        ((5,), None, False),
    ],
)
def test_dropout_draws_large_rows_alone(shape, noise_shape, alone, dtype):
    inputs = tf.cast(np.random.default_rng(1).normal(size=(ROWS, *shape)), dtype)
    expected = keras.random.dropout(inputs, 0.3, noise_shape, seed=keras.random.SeedGenerator(5))
    generator = keras.random.SeedGenerator(5)

    @tf.function(input_signature=[tf.TensorSpec((None, *shape), dtype), tf.TensorSpec([None], tf.int64)])
    def own(inputs, places):
        with RowsOfStep(places, tf.constant(ROWS)).draws():
            return keras.random.dropout(inputs, 0.3, noise_shape, seed=generator)

    operations = own.get_concrete_function().graph.get_operations()
    assert any("While" in operation.type for operation in operations) is (alone and dtype == "float32")
    np.testing.assert_array_equal(own(tf.gather(inputs, PLACES), PLACES), np.asarray(expected)[PLACES], strict=True)
