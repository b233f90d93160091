"""What a worker draws for its rows is what plain Keras draws for them among all rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras.step.random_draws import LARGE_ROW, RowsOfStep

ROWS = 41
PLACES = [*range(40, 20, -2), 3, 0, 7, 1, 33, 12, 5]  # one more than are drawn in a turn


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "noise_shape", "alone", "dtype"),
    [
        ((96, 96, 3), (None, 96, 96, 1), True, "float32"),
        ((LARGE_ROW + 2,), None, False, "float32"),  # whose rows begin within the numbers of one counter
        ((LARGE_ROW,), None, False, "bfloat16"),
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
    assert any("While" in operation.type for operation in operations) is alone
    np.testing.assert_array_equal(own(tf.gather(inputs, PLACES), PLACES), np.asarray(expected)[PLACES], strict=True)


@pytest.mark.parametrize("known", [(False, True), (False, True, True)])
def test_what_a_try_has_shown_of_draws_counts_if_they_come_in_its_order(known):
    @tf.function(input_signature=[tf.TensorSpec((None, 4)), tf.TensorSpec([None], tf.int64)])
    def drawn(length, places):
        with RowsOfStep(places, tf.constant(ROWS), known).draws():
            of_positions = keras.random.normal((tf.shape(length)[0], 2), seed=3)
            return of_positions, keras.random.normal((tf.size(places), 2), seed=4)

    if len(known) > 2:
        with pytest.raises(ModelError, match="in another order than when it was tried"):
            drawn(tf.ones((6, 4)), PLACES)
        return
    of_positions, of_rows = drawn(tf.ones((6, 4)), PLACES)
    np.testing.assert_array_equal(of_positions, keras.random.normal((6, 2), seed=3))
    np.testing.assert_array_equal(of_rows, np.asarray(keras.random.normal((ROWS, 2), seed=4))[PLACES])
