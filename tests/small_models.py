"""Keras models of the end-to-end tests; apart from train functions, as what names Keras has nodes import it."""

from __future__ import annotations


def linear():  # type: ignore[no-untyped-def]
    """A model of one weight and one bias, which are zero."""
    import keras

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.Adam(0.3), "mse")
    return model
