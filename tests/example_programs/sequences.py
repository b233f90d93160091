"""Programs on text and other sequences."""

from __future__ import annotations

import numpy as np

from example_programs.data import adam, case


def token_rows(rows=41, tokens=30, width=8, seed=42):
    random = np.random.RandomState(seed)
    x = random.randint(1, tokens, (rows, width))
    for row, length in zip(x, random.randint(2, width + 1, rows), strict=True):
        row[length:] = 0
    return x


def next_tokens():
    x = token_rows(width=9)
    return case(x[:, :-1], x[:, 1:])


def generator_of_text():
    """The next token of each place: causal attention; a model of two outputs, of which one has a loss."""
    import keras

    layers = keras.layers
    x = layers.Input((8,), name="x", dtype="int64")
    hidden = layers.Embedding(30, 4)(x)
    attended = layers.MultiHeadAttention(2, 2, dropout=0.1)(hidden, hidden, use_causal_mask=True)
    hidden = layers.LayerNormalization()(layers.Add()([hidden, attended]))
    outputs = [layers.Dense(30, name="label")(hidden), layers.Identity(name="hidden")(hidden)]
    model = keras.Model(x, outputs)
    model.compile(adam(), [keras.losses.SparseCategoricalCrossentropy(from_logits=True), None])
    return model


def spoken(rows=33):
    random = np.random.RandomState(44)
    label = random.randint(1, 5, (rows, 3))
    x = 0.3 * random.randn(rows, 12, 5)
    for row, letters in zip(x, label, strict=True):
        for place, letter in enumerate(letters):
            row[4 * place : 4 * place + 2, letter] += 1
    return x.astype("f"), label


def endpoint():
    """Letters of a picture: the label is an input of the last layer, which adds the CTC loss of each row."""
    import keras
    from keras import layers, ops

    class Ctc(layers.Layer):
        def call(self, y, p):
            rows, ones = ops.shape(p)[0], ops.ones((ops.shape(p)[0],), "int32")
            logits = ops.log(p + 1e-7)
            self.add_loss(ops.reshape(ops.ctc_loss(y, logits, ones * 3, ones * 12, mask_index=0), (rows, 1)))
            return p

    x, letters = layers.Input((12, 5), name="x"), layers.Input((3,), name="letters", dtype="int32")
    hidden = layers.Bidirectional(layers.LSTM(6, return_sequences=True, dropout=0.25))(layers.Dense(6, "relu")(x))
    model = keras.Model([x, letters], Ctc()(letters, layers.Dense(5, "softmax")(hidden)))
    model.compile(keras.optimizers.Adam(0.01, clipnorm=1.0))
    return model


def letters_as_input():
    x, letters = spoken()
    return case({"x": x, "letters": letters})


PROGRAMS = {
    "text_generation": (next_tokens, generator_of_text),
    "ctc_endpoint": (letters_as_input, endpoint),
}
