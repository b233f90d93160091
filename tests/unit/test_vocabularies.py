"""Vocabularies reach other processes as they are, whatever their entries; Keras's own file has one a line."""

from __future__ import annotations

import numpy as np
import pytest

VALUES = ["c", "c", "c", "d", "d", "a\nb", "p\r", "x\u2028y", "x\x85y", "", "Größe"]
KINDS = {
    "StringLookup, several out of the vocabulary": {"num_oov_indices": 3, "mask_token": "-"},
    "TextVectorization, padded": {"split": None, "output_mode": "tf_idf", "max_tokens": 20, "pad_to_max_tokens": True},
    "IntegerLookup": {},
}


def values_of(kind):
    return np.array([5, 5, 7, 9]) if kind.startswith("Integer") else np.array(VALUES)


def outputs(model, kind):
    import tensorflow as tf

    return np.asarray(model(tf.constant(values_of(kind)[:, None])))


@pytest.mark.parametrize("kind", KINDS)
def test_in_the_file_of_an_instance(kind):
    import keras

    from tfos_ml.keras.model.source import ModelSource, save_instance

    values = values_of(kind)[:, None]
    layer = getattr(keras.layers, kind.partition(",")[0])(name="lookup", **KINDS[kind])
    layer.adapt(values)
    x = keras.layers.Input((1,), dtype="int64" if values.dtype.kind == "i" else "string")
    model = keras.Sequential([x, layer])
    model.compile("sgd", "mse")
    before = layer.get_config()
    built = ModelSource(archive=save_instance(model)).build()
    np.testing.assert_array_equal(outputs(built, kind), outputs(model, kind))
    assert layer.get_config() == before
