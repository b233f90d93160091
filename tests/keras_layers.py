"""Models whose layers compute over a batch, or draw random numbers; cases for keras_worker.py."""

from __future__ import annotations

import numpy as np
from keras_programs import few_rows, numbers, rare_class, tokens


def images(rows=37, batch=8):
    random = np.random.RandomState(12)
    x = random.rand(rows, 8, 8, 3).astype("f")
    return {"x": x, "y": x.mean((1, 2, 3)).astype("f"), "w": None, "val": np.arange(rows) % 5 == 2, "batch": batch}


def sequences():
    random = np.random.RandomState(13)
    x = random.randint(1, 30, (41, 6))
    for row, length in zip(x, random.randint(1, 7, 41), strict=True):
        row[length:] = 0
    return {"x": x, "y": (x.sum(1) % 2).astype("f"), "w": None, "val": None, "batch": 8}


def sgd():
    import keras

    return keras.optimizers.SGD(0.1, momentum=0.9)


def dense(*layers, width=4):
    """Layers, by functions that make them, between two of 6 and 1 units."""
    import keras

    made = [make() for make in layers]
    model = keras.Sequential(
        [keras.layers.Input((width,), name="x"), keras.layers.Dense(6, "tanh"), *made, keras.layers.Dense(1)]
    )
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


def layer(name, *args, **options):
    import keras

    return lambda: getattr(keras.layers, name)(*args, **options)


def convolutional():
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8, 8, 3), name="x"),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.SpatialDropout2D(0.3),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(momentum=0.9, scale=False),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.5),
            layers.Dense(1),
        ]
    )
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


def augmented():
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8, 8, 3), name="x"),
            layers.RandomFlip("horizontal"),
            layers.RandomRotation(0.2),
            layers.RandomZoom(0.2),
            layers.RandomTranslation(0.1, 0.1),
            layers.RandomContrast(0.3),
            layers.RandomBrightness(0.2, value_range=(0, 1)),
            layers.Conv2D(3, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
        ]
    )
    model.compile(sgd(), "mse")
    return model


def recurrent():
    import keras

    layers = keras.layers
    x = layers.Input((6,), name="x", dtype="int64")
    hidden = layers.Embedding(30, 4, mask_zero=True)(x)
    hidden = layers.SpatialDropout1D(0.2)(hidden)
    hidden = layers.Bidirectional(layers.LSTM(3, dropout=0.3, recurrent_dropout=0.2, return_sequences=True))(hidden)
    hidden = layers.GRU(4, dropout=0.4)(hidden)
    model = keras.Model(x, layers.Dense(1, "sigmoid")(hidden))
    model.compile(sgd(), "binary_crossentropy")
    return model


def masked_normalization():
    import keras

    layers = keras.layers
    x = layers.Input((6,), name="x", dtype="int64")
    hidden = layers.BatchNormalization(momentum=0.8)(layers.Embedding(30, 4, mask_zero=True)(x))
    model = keras.Model(x, layers.Dense(1, "sigmoid")(layers.GlobalAveragePooling1D()(hidden)))
    model.compile(sgd(), "binary_crossentropy")
    return model


def transformer():
    import keras

    layers = keras.layers
    x = layers.Input((6,), name="x", dtype="int64")
    hidden = layers.Embedding(30, 4)(x)
    attended = layers.MultiHeadAttention(2, 2, dropout=0.3)(hidden, hidden)
    hidden = layers.LayerNormalization()(hidden + layers.Dropout(0.2)(attended))
    model = keras.Model(x, layers.Dense(1, "sigmoid")(layers.GlobalAveragePooling1D()(hidden)))
    model.compile(sgd(), "binary_crossentropy")
    return model


def own_sampling():
    """A variational autoencoder as the guide of Keras has it, with a seed generator of its own."""
    import keras

    class Sampling(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.generator = keras.random.SeedGenerator(7)

        def call(self, inputs):
            mean, scale = inputs
            shape = keras.ops.shape(mean)
            return mean + keras.ops.exp(0.5 * scale) * keras.random.normal(shape, seed=self.generator)

    x = keras.layers.Input((4,), name="x")
    hidden = keras.layers.Dense(5, "tanh")(x)
    z = Sampling()((keras.layers.Dense(2)(hidden), keras.layers.Dense(2)(hidden)))
    model = keras.Model(x, keras.layers.Dense(1)(z))
    model.compile(sgd(), "mse")
    return model


LAYERS = {
    "convolutional": (images, convolutional),
    "augmented": (images, augmented),
    "recurrent_dropout": (sequences, recurrent),
    "masked_batch_normalization": (sequences, masked_normalization),
    "transformer_dropout": (sequences, transformer),
    "own_sampling": (numbers, own_sampling),
    "dropout": (numbers, lambda: dense(layer("Dropout", 0.5))),
    "idle_layers": (few_rows, lambda: dense(layer("Dropout", 0.3), layer("BatchNormalization"))),
    "noise": (numbers, lambda: dense(layer("GaussianNoise", 0.3), layer("GaussianDropout", 0.3))),
    "alpha_dropout": (numbers, lambda: dense(layer("AlphaDropout", 0.3))),
    "dropout_noise_shape": (numbers, lambda: dense(layer("Dropout", 0.4, noise_shape=(None, 1)))),
    "batch_normalization": (numbers, lambda: dense(layer("BatchNormalization"))),
}


def adversarial():
    """A GAN after the guide "Customizing fit": two optimizers, each of which updates once a step."""
    import keras
    from keras import ops

    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.generator = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(4)])
            self.discriminator = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
            self.seeds = keras.random.SeedGenerator(3)
            self.d_loss, self.g_loss = keras.metrics.Mean("d_loss"), keras.metrics.Mean("g_loss")

        def compile(self, d_optimizer, g_optimizer, loss_fn):
            super().compile()
            self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

        @property
        def metrics(self):
            return [self.d_loss, self.g_loss]

        def call(self, inputs):
            return self.discriminator(inputs)

        def train_step(self, data):
            import tensorflow as tf

            rows = ops.shape(data)[0]
            noise = keras.random.normal((rows, 2), seed=self.seeds)
            with tf.GradientTape() as tape:
                real, fake = self.discriminator(data), self.discriminator(self.generator(noise))
                d_loss = self.loss_fn(ops.ones_like(real), real) + self.loss_fn(ops.zeros_like(fake), fake)
            weights = self.discriminator.trainable_weights
            self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
            noise = keras.random.normal((rows, 2), seed=self.seeds)
            with tf.GradientTape() as tape:
                fake = self.discriminator(self.generator(noise))
                g_loss = self.loss_fn(ops.ones_like(fake), fake)
            weights = self.generator.trainable_weights
            self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
            self.d_loss.update_state(d_loss)
            self.g_loss.update_state(g_loss)
            return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}

    model = Gan()
    optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.05, momentum=0.9)]
    model.compile(*optimizers, keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def recommender():
    """Several tables, one of them read twice, and Adam."""
    import keras

    layers = keras.layers
    x = layers.Input((6,), name="x", dtype="int64")
    tables = [layers.Embedding(50, 3) for _ in range(4)]
    read = [layers.Flatten()(table(x[:, n : n + 1])) for n, table in enumerate(tables)]
    read.append(layers.Flatten()(tables[0](x[:, 4:5])))
    model = keras.Model(x, layers.Dense(1, "sigmoid")(layers.Concatenate()(read)))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    return model


LAYERS |= {
    "adversarial": (lambda: {**numbers(), "y": None, "val": None}, adversarial),
    "recommender": (tokens, recommender),
}


def masks():
    random = np.random.RandomState(14)
    x = random.rand(33, 8, 8, 3).astype("f")
    return {"x": x, "y": (x[..., :1] > 0.6).astype("f"), "w": None, "val": None, "batch": 8}


def segmentation(loss):
    """Segmentation with a loss over all pixels of a batch together."""

    def make():
        import keras

        layers = keras.layers
        model = keras.Sequential(
            [
                layers.Input((8, 8, 3), name="x"),
                layers.Conv2D(4, 3, padding="same", activation="relu"),
                layers.BatchNormalization(),
                layers.Conv2D(1, 1, activation="sigmoid"),
            ]
        )
        model.compile(sgd(), getattr(keras.losses, loss)())
        return model

    return make


def circle():
    import keras

    layers = keras.layers
    normalized = layers.UnitNormalization()
    model = keras.Sequential([layers.Input((4,), name="x"), layers.Dense(6, "tanh"), layers.Dense(3), normalized])
    model.compile(keras.optimizers.SGD(0.001), keras.losses.Circle(gamma=4))
    return model


LAYERS |= {
    "dice": (masks, segmentation("Dice")),
    "tversky": (masks, segmentation("Tversky")),
    "circle": (lambda: {**rare_class(), "val": None}, circle),
}
