"""What the try of a step keeps of gradients tells them apart as they would."""

import numpy as np
import pytest
import tensorflow as tf

from tfos_ml.keras.probe.gradients import NUMBERS, Gradient, differ, distances

ROWS, WIDTH, AT = NUMBERS, 3, [5, 16_000, 5]
SHARES = (0.625, 0.375)


def random(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype("f")


def dense(values):
    return Gradient.of(tf.constant(values))


def off(*parts):
    ((_, kinds),) = distances(["table"], [[dense(part)] for part in parts], SHARES)
    return kinds


def test_slices_of_a_table_are_like_the_dense_gradient():
    slices = tf.IndexedSlices(tf.constant(random(3, WIDTH)), tf.constant(AT), tf.constant([ROWS, WIDTH]))
    of_slices, of_dense = Gradient.of(slices), Gradient.of(tf.convert_to_tensor(slices))
    np.testing.assert_allclose(of_slices.sketch, of_dense.sketch, rtol=1e-5, atol=1e-6)
    assert of_slices[1:3] == pytest.approx(of_dense[1:3])
    assert of_slices.entries.tolist() == AT


def test_shares_are_a_mean_or_a_sum_or_neither():
    first, second = random(2, ROWS, WIDTH)
    mean, total = SHARES[0] * first + SHARES[1] * second, first + second
    assert off(mean, first, second)["mean"] < 1e-5 < 0.1 < off(mean, first, second)["sum"]
    assert off(total, first, second)["sum"] < 1e-5 < 0.1 < off(total, first, second)["mean"]
    total[ROWS // 2] *= 1.5
    assert min(off(total, first, second).values()) > 1e-3


def test_gradients_of_other_steps_differ():
    values = random(ROWS, WIDTH)
    assert not differ([dense(values), None], [dense(values * (1 + 1e-7)), None])
    assert differ([dense(values)], [dense(values[::-1].copy())])
    assert differ([dense(values * np.nan)], [dense(values * np.nan)])
