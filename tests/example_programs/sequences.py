"""Programs on text, time series and other sequences."""

from __future__ import annotations

import numpy as np

from example_programs.data import adam, case

WORDS = ["fine", "good", "bad", "dull", "film", "plot", "the", "a", "Über", "end,"]


def reviews(rows=47):
    random = np.random.RandomState(41)
    texts = [" ".join(random.choice(WORDS, random.randint(2, 9))) for _ in range(rows)]
    label = np.array([("good" in text) + ("fine" in text) > ("bad" in text) for text in texts])
    return np.array(texts, object), label.astype("f")


def text_from_scratch():
    """Raw text: a vectorizer adapted to it, an embedding, convolutions, dropout."""
    import keras

    layers = keras.layers
    vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=12)
    vectorize.adapt(reviews()[0].tolist())
    text = layers.Input((), dtype="string", name="x")
    hidden = layers.Dropout(0.3)(layers.Embedding(20, 6)(vectorize(text)))
    hidden = layers.Conv1D(6, 5, padding="valid", activation="relu", strides=2)(hidden)
    hidden = layers.Dropout(0.3)(layers.GlobalMaxPooling1D()(hidden))
    model = keras.Model(text, layers.Dense(1, "sigmoid")(hidden))
    model.compile(adam(), "binary_crossentropy", metrics=["mse"])
    return model


def token_rows(rows=41, tokens=30, width=8, seed=42):
    random = np.random.RandomState(seed)
    x = random.randint(1, tokens, (rows, width))
    for row, length in zip(x, random.randint(2, width + 1, rows), strict=True):
        row[length:] = 0
    return x


def warmed_up():
    """A schedule class of one's own: a rate that grows, and then falls."""
    import keras
    from keras import ops

    class Warmup(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            step = ops.cast(step, "float32")
            return 0.02 * ops.minimum((step + 1) / 5, ops.rsqrt(step + 1))

    return keras.optimizers.Adam(Warmup(), beta_2=0.98, epsilon=1e-6)


def encoder_of_text():
    """Text classification with a transformer block, tokens and positions in one layer of one's own."""
    import keras
    from keras import layers, ops

    class Block(layers.Layer):
        def __init__(self, width, heads):
            super().__init__()
            self.supports_masking = True
            self.attention = layers.MultiHeadAttention(heads, width // heads)
            self.feed = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(width)])
            self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
            self.dropouts = [layers.Dropout(0.1) for _ in range(2)]

        def call(self, x, training=None):
            attended = self.dropouts[0](self.attention(x, x), training=training)
            hidden = self.norms[0](x + attended)
            return self.norms[1](hidden + self.dropouts[1](self.feed(hidden), training=training))

    class TokensAndPositions(layers.Layer):
        def __init__(self, length, tokens, width):
            super().__init__()
            self.tokens = layers.Embedding(tokens, width, mask_zero=True)
            self.positions = layers.Embedding(length, width)

        def call(self, x):
            return self.tokens(x) + self.positions(ops.arange(0, ops.shape(x)[-1], 1))

        def compute_mask(self, x, mask=None):
            return self.tokens.compute_mask(x)

    x = layers.Input((8,), name="x", dtype="int64")
    hidden = Block(4, 2)(TokensAndPositions(8, 30, 4)(x))
    hidden = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(hidden))
    model = keras.Model(x, layers.Dense(2, "softmax")(hidden))
    model.compile(warmed_up(), "sparse_categorical_crossentropy")
    return model


def classified_text():
    x = token_rows()
    return case(x, x.sum(1) % 2, validates=True)


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
    "text_from_scratch": (lambda: case(*reviews(), validates=True), text_from_scratch),
    "text_transformer": (classified_text, encoder_of_text),
    "text_generation": (next_tokens, generator_of_text),
    "ctc_endpoint": (letters_as_input, endpoint),
}
