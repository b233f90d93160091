"""Programs on text, time series and other sequences."""

from __future__ import annotations

import numpy as np

from example_programs.data import adam, case, sgd

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


def tagged():
    x = token_rows(seed=43)
    return case(x, np.where(x > 0, x % 3 + 1, 0), validates=True)


def named_entities():
    """A tag for each word; the loss divides by the number of words in the batch, padding left out."""
    import keras
    from keras import layers, ops

    class OfWords(keras.losses.Loss):
        def call(self, y, p):
            loss = keras.losses.sparse_categorical_crossentropy(y, p)
            words = ops.cast(y > 0, "float32")
            return ops.sum(loss * words) / ops.sum(words)

    x = layers.Input((8,), name="x", dtype="int64")
    hidden = layers.Bidirectional(layers.GRU(4, return_sequences=True))(layers.Embedding(30, 4, mask_zero=True)(x))
    model = keras.Model(x, layers.Dense(4, "softmax")(layers.Dropout(0.2)(hidden)))
    model.compile(adam(), OfWords())
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


def speech():
    """The same with Keras's own CTC loss."""
    import keras

    layers = keras.layers
    x = layers.Input((12, 5), name="x")
    hidden = layers.GRU(8, return_sequences=True)(layers.BatchNormalization()(x))
    model = keras.Model(x, layers.Dense(5)(hidden))
    model.compile(adam(), keras.losses.CTC())
    return model


def waves(rows=43):
    random = np.random.RandomState(45)
    label = random.randint(0, 2, rows)
    times = np.arange(16) / 16
    x = np.sin(2 * np.pi * (1 + label[:, None]) * times + random.uniform(0, 6, (rows, 1)))
    return (x + 0.1 * random.randn(rows, 16)).astype("f")[..., None], label


def convolutions():
    """Time series classification, with callbacks that watch the validation rows."""
    import keras

    layers = keras.layers
    hidden = x = layers.Input((16, 1), name="x")
    for _ in range(2):
        hidden = layers.Conv1D(4, 3, padding="same")(hidden)
        hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
    model = keras.Model(x, layers.Dense(2, "softmax")(layers.GlobalAveragePooling1D()(hidden)))
    model.compile(sgd(), "sparse_categorical_crossentropy")
    return model


def watching():
    import keras

    return [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=10.0),
        keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True),
    ]


def forecast():
    """The next values of a series from its last ones, with dropout inside of the recurrent layers."""
    import keras

    layers = keras.layers
    x = layers.Input((12, 1), name="x")
    hidden = layers.LSTM(6, dropout=0.2, recurrent_dropout=0.1, return_sequences=True)(x)
    model = keras.Model(x, layers.Dense(4)(layers.LSTM(5)(hidden)))
    model.compile(keras.optimizers.RMSprop(0.01), "huber", metrics=["mae"])
    return model


def windows():
    x = waves()[0]
    return case(x[:, :12], x[:, 12:, 0])


def repaired():
    """A convolutional autoencoder whose errors show what is unusual."""
    import keras

    layers = keras.layers
    parts = [
        layers.Input((16, 1), name="x"),
        layers.Conv1D(6, 7, padding="same", strides=2, activation="relu"),
        layers.Dropout(0.2),
        layers.Conv1DTranspose(6, 7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(1, 7, padding="same"),
    ]
    model = keras.Sequential(parts)
    model.compile(adam(), "mse")
    return model


def films(rows=19):
    random = np.random.RandomState(46)
    first = random.rand(rows, 1, 6, 6, 1)
    x = np.concatenate([np.roll(first, step, axis=2) for step in range(4)], axis=1).astype("f")
    return case(x[:, :-1], x[:, 1:], batch=4)


def next_frames():
    import keras

    layers = keras.layers
    x = layers.Input((3, 6, 6, 1), name="x")
    hidden = layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True)(x)
    hidden = layers.BatchNormalization()(hidden)
    model = keras.Model(x, layers.Conv3D(1, 3, activation="sigmoid", padding="same")(hidden))
    model.compile(adam(), "binary_crossentropy")
    return model


def translations(rows=35):
    random = np.random.RandomState(47)
    x = random.randint(1, 12, (rows, 5))
    return case({"source": x, "target": x[:, ::-1] % 7}, np.roll(x[:, ::-1] % 7, -1, axis=1))


def translation():
    """An encoder, and a decoder that begins with its state and is given what it should have said."""
    import keras

    layers = keras.layers
    source = layers.Input((5,), name="source", dtype="int64")
    target = layers.Input((5,), name="target", dtype="int64")
    _, *state = layers.LSTM(6, return_state=True)(layers.Embedding(12, 4)(source))
    said, *_ = layers.LSTM(6, return_sequences=True, return_state=True)(
        layers.Embedding(7, 4)(target), initial_state=state
    )
    model = keras.Model([source, target], layers.Dense(7, "softmax")(said))
    model.compile(keras.optimizers.RMSprop(0.01), "sparse_categorical_crossentropy")
    return model


def letters_as_input():
    x, letters = spoken()
    return case({"x": x, "letters": letters})


PROGRAMS = {
    "text_from_scratch": (lambda: case(*reviews(), validates=True), text_from_scratch),
    "text_transformer": (classified_text, encoder_of_text),
    "text_generation": (next_tokens, generator_of_text),
    "named_entities": (tagged, named_entities),
    "ctc_endpoint": (letters_as_input, endpoint),
    "ctc_loss": (lambda: case(*spoken(), validates=True), speech),
    "timeseries_classification": (lambda: case(*waves(), validates=True, callbacks=watching), convolutions),
    "timeseries_forecast": (windows, forecast),
    "timeseries_autoencoder": (lambda: case(waves()[0], waves()[0]), repaired),
    "next_frame": (films, next_frames),
    "sequence_to_sequence": (translations, translation),
}
