"""Programs as people post them, whose steps are not those of Keras's own models; cases for keras_worker.py.

Each is written after a public report or guide, small, on numbers made up here.
"""

from __future__ import annotations

import numpy as np


def numbers(rows=41, width=4, seed=8, batch=8):
    random = np.random.RandomState(seed)
    x = random.randn(rows, width).astype("f")
    y = (x @ random.randn(width) + 0.3).astype("f")
    return {"x": x, "y": y, "w": None, "val": np.arange(rows) % 5 == 2, "batch": batch}


def few_rows():
    """Nine rows in batches of four: the last step has one row."""
    return {**numbers(rows=9, batch=4), "val": None}


def rare_rows():
    """A step of four equal rows, and one of one other row."""
    y = np.array([1, 1, 1, 1, 3], "f")
    return {"x": np.ones((5, 1), "f"), "y": y, "w": None, "val": None, "batch": 4}


def tokens():
    random = np.random.RandomState(9)
    x = random.randint(0, 50, (41, 6))
    return {"x": x, "y": (x[:, 0] > x[:, 3]).astype("f"), "w": None, "val": None, "batch": 8}


def unlabeled_images():
    random = np.random.RandomState(10)
    return {"x": random.rand(41, 16).astype("f"), "y": None, "w": None, "val": None, "batch": 8}


def small(optimizer=None, loss="mse", width=4, model_class=None, outputs=1, **compiled):
    import keras

    layers = [keras.layers.Input((width,), name="x"), keras.layers.Dense(6, "tanh"), keras.layers.Dense(outputs)]
    model = (model_class or keras.Sequential)(layers)
    model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), loss, **compiled)
    return model


def position_embedding():
    """After keras.io's text classification with a transformer; its gradients of tables are sparse, and clipped."""
    import keras

    class TokensAndPositions(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = keras.layers.Embedding(50, 4), keras.layers.Embedding(6, 4)

        def call(self, x):
            return self.tokens(x) + self.positions(keras.ops.arange(keras.ops.shape(x)[-1]))

    x = keras.layers.Input((6,), name="x", dtype="int64")
    hidden = TokensAndPositions()(x)
    hidden = keras.layers.MultiHeadAttention(2, 2)(hidden, hidden)
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(hidden))
    model = keras.Model(x, keras.layers.Dense(1, "sigmoid")(pooled))
    model.compile(keras.optimizers.RMSprop(0.01, clipnorm=0.05), "binary_crossentropy")
    return model


def added_sum():
    """Ridge on the activations, summed over rows, beside a mean over rows."""
    import keras

    class Penalty(keras.layers.Layer):
        def call(self, x):
            self.add_loss(0.01 * keras.ops.sum(x * x))
            return x

    x = keras.layers.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(1)(Penalty()(keras.layers.Dense(3)(x))))
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def tracker():
    """After keras.io's "Customizing fit": a metric that is told of one number a step."""
    import keras
    import tensorflow as tf

    class Tracked(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)
            self.loss_tracker = keras.metrics.Mean(name="loss")
            self.error = keras.metrics.MeanAbsoluteError(name="mae")

        def call(self, x):
            return self.dense(x)

        @property
        def metrics(self):
            return [self.loss_tracker, self.error]

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = keras.ops.mean(keras.losses.mean_squared_error(y[:, None], p))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            self.loss_tracker.update_state(loss)
            self.error.update_state(y[:, None], p)
            return {"loss": self.loss_tracker.result(), "mae": self.error.result()}

    model = Tracked()
    model.compile(keras.optimizers.SGD(0.0))
    return model


def counted_steps():
    """A metric of one's own that counts the steps as integers, and divides by them."""
    import keras

    class OverSteps(keras.metrics.Metric):
        def __init__(self, name="over_steps"):
            super().__init__(name=name)
            self.total = self.add_variable((), "zeros", name="total")
            self.steps = self.add_variable((), "zeros", dtype="int32", name="steps")

        def update_state(self, y, p, sample_weight=None):
            self.total.assign_add(keras.ops.sum(keras.ops.abs(keras.ops.reshape(y, (-1, 1)) - p)))
            self.steps.assign_add(1)

        def result(self):
            return self.total / keras.ops.cast(self.steps, "float32")

    return small(width=1, metrics=[OverSteps()])


def in_float64():
    """A masked loss and weights of steps, whose shares are no powers of two."""
    import keras

    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        layers = [keras.layers.Input((4,), name="x"), keras.layers.Dense(6, "tanh"), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["mae"])
    finally:
        keras.config.set_floatx(before)
    return model


def ragged_tokens():
    data = tokens()
    return {**data, "lengths": np.where(np.arange(41) < 8, 6, 4), "x": np.where(np.arange(6) < 4, data["x"], 0)}


def texts():
    """Short texts and a long one; the last step has one row, so that only one worker has a row in it."""
    random = np.random.RandomState(4)
    lengths = np.where(np.arange(41) == 19, 60, random.randint(1, 9, 41))
    x = np.where(np.arange(60) < lengths[:, None], random.randint(1, 50, (41, 60)), 0)
    return {"x": x, "y": (x.sum(1) % 2).astype("f"), "w": None, "val": None, "lengths": lengths, "batch": 8}


def mean_of_words():
    """A mean over the words of a text, which also takes those that pad it."""
    import keras

    class Mean(keras.layers.Layer):
        def call(self, words):
            return keras.ops.mean(words, axis=1)

    x = keras.Input((None,), dtype="int64", name="x")
    hidden = keras.layers.Conv1D(6, 3, padding="same", activation="tanh")(keras.layers.Embedding(50, 4)(x))
    model = keras.Model(x, keras.layers.Dense(1, activation="sigmoid")(Mean()(hidden)))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["mae"])
    return model


def noisy_positions(select=False):
    """A layer of one's own that draws for positions, for rows, and for all words of all rows at once.

    With `select`, it draws for some words, of which each row has another number.
    """
    import keras
    import tensorflow as tf
    from keras import ops

    class Noisy(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embed, self.drop = keras.layers.Embedding(50, 4), keras.layers.Dropout(0.3, seed=4)
            self.generator = keras.random.SeedGenerator(3)

        def call(self, x, training=False):
            words = self.embed(x)
            if training:
                rows, length, width = ops.shape(words)
                words += keras.random.normal((length, width), stddev=0.3, seed=self.generator)
                words += keras.random.uniform((rows, 1, 1), seed=self.generator)
                flat = ops.reshape(words, (-1, 4))
                flat += keras.random.normal((4,), stddev=0.1, seed=self.generator)
                words = ops.reshape(self.drop(flat, training=True), ops.shape(words))
                if select:
                    some = self.drop(tf.boolean_mask(words, x > 25), training=True)
                    words += tf.reduce_mean(some) * 0.0
            return ops.mean(words, axis=1)

    x = keras.layers.Input((None,), name="x", dtype="int64")
    model = keras.Model(x, keras.layers.Dense(1, "sigmoid")(Noisy()(x)))
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    return model


def loss_of_own_step():
    """After keras.io's guide to denoising diffusion: ``compile`` has a loss that only ``train_step`` calls."""
    import keras
    import tensorflow as tf
    from keras import ops

    class Diffusion(keras.Model):
        def __init__(self):
            super().__init__()
            self.network, self.moving = (self.denoiser() for _ in range(2))
            self.moving.set_weights(self.network.get_weights())
            self.noise_loss = keras.metrics.Mean(name="noise_loss")

        @staticmethod
        def denoiser():
            image, time = keras.Input((16,)), keras.Input((1,))
            hidden = keras.layers.Dense(12, "swish")(keras.layers.Concatenate()([image, time]))
            normal = keras.layers.BatchNormalization(center=False, scale=False)(hidden)
            return keras.Model([image, time], keras.layers.Dense(16)(normal))

        def call(self, x):
            return self.moving([x, ops.ones((ops.shape(x)[0], 1))])

        @property
        def metrics(self):
            return [self.noise_loss]

        def noised(self, images):
            noise = keras.random.normal(ops.shape(images))
            time = keras.random.uniform((ops.shape(images)[0], 1))
            return noise, [ops.cos(time) * images + ops.sin(time) * noise, time]

        def train_step(self, images):
            noise, inputs = self.noised(images)
            with tf.GradientTape() as tape:
                loss = self.loss(noise, self.network(inputs, training=True))
            weights = self.network.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            for weight, moving in zip(self.network.weights, self.moving.weights, strict=True):
                moving.assign(0.9 * moving + 0.1 * weight)
            self.noise_loss.update_state(loss)
            return {"noise_loss": self.noise_loss.result()}

    model = Diffusion()
    model.compile(keras.optimizers.SGD(0.05), keras.losses.mean_absolute_error)
    return model


def rare_positives():
    """Labels of which the first 25 are negative."""
    data = numbers()
    return {**data, "y": ((data["y"] > 0.8) & (np.arange(41) >= 25)).astype("f")}


def two_rows():
    """Fewer than there are workers."""
    data = rare_positives()
    return {**data, "x": data["x"][30:32], "y": data["y"][30:32], "val": None, "batch": 2}


def loss_by_positives():
    """A loss that is divided by the number of positive labels in a batch, as those of detectors are."""
    import tensorflow as tf

    def of_positives(y, p):
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(tf.reshape(y, tf.shape(p)), p)
        return tf.reduce_sum(entropy) / tf.maximum(1.0, tf.reduce_sum(y))

    return small(loss=of_positives)


def evaluating_within():
    """Callbacks that evaluate and predict within an epoch: Keras's metrics go on from those of the evaluation."""
    import keras

    class OnTestSet(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self._losses = []

        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                data = numbers(rows=7, seed=5)
                self._losses += self.model.evaluate(data["x"], data["y"], verbose=0)
                self._losses += [float(self.model.predict_on_batch(data["x"]).mean())]

        def on_epoch_end(self, epoch, logs=None):
            logs.update({f"test_{i}": loss for i, loss in enumerate(self._losses)})

    return [OnTestSet()]


def stopping_within():
    """A callback of one's own that inherits from Keras's, and stops within an epoch by the loss so far."""
    import keras

    class Within(keras.callbacks.EarlyStopping):
        def on_train_batch_end(self, batch, logs=None):
            if 0.5 < logs["loss"] < 1.0:
                self.model.stop_training = True

    return [Within("loss", patience=9)]


def in_batch_negatives():
    """A two-tower model: each row's negatives are the other rows of its batch."""
    import keras
    import tensorflow as tf

    def softmax_over_batch(y, p):
        scores = tf.matmul(p, p, transpose_b=True)
        return keras.losses.sparse_categorical_crossentropy(tf.range(tf.shape(p)[0]), scores, from_logits=True)

    return small(loss=softmax_over_batch, outputs=3)


def rmse_metric():
    import tensorflow as tf

    def rmse(y, p):
        return tf.sqrt(tf.reduce_mean(tf.square(tf.reshape(y, [-1, 1]) - p)))

    return small(metrics=[rmse])


def sampling():
    """A variational autoencoder: a layer that draws with TensorFlow's own function."""
    import keras
    import tensorflow as tf

    class Sampling(keras.layers.Layer):
        def call(self, inputs):
            mean, scale = inputs
            self.add_loss(-0.5 * tf.reduce_mean(1 + scale - tf.square(mean) - tf.exp(scale)))
            return mean + tf.exp(0.5 * scale) * tf.random.normal(tf.shape(mean))

    x = keras.layers.Input((16,), name="x")
    hidden = keras.layers.Dense(8, "relu")(x)
    z = Sampling()((keras.layers.Dense(2)(hidden), keras.layers.Dense(2)(hidden)))
    model = keras.Model(x, keras.layers.Dense(1)(z))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def batch_normalized():
    import keras
    import tensorflow as tf

    class Scale(keras.layers.Layer):
        def call(self, x):
            return 2.0 * x

    x = keras.layers.Input((4,), name="x")
    hidden = keras.layers.BatchNormalization()(Scale()(keras.layers.Dense(5)(x)))
    model = keras.Model(x, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.01), lambda y, p: tf.reduce_sum(tf.square(tf.reshape(y, [-1, 1]) - p)))
    return model


TRIED = {  # what is not the same on any number of workers: by its own words
    "local_statistics": (lambda: {**numbers(), "has_local_statistics": True}, batch_normalized),
    "rmse_metric": (numbers, rmse_metric),
}
PROGRAMS = {
    "batch_normalized": (numbers, batch_normalized),
    "position_embedding_clipped": (tokens, position_embedding),
    "added_sum": (numbers, added_sum),
    "tracker": (rare_rows, tracker),
    "diffusion": (unlabeled_images, loss_of_own_step),
    "loss_by_positives": (rare_positives, loss_by_positives),
    "two_rows": (two_rows, loss_by_positives),
    "counted_steps": (rare_rows, counted_steps),
    "mean_of_words": (texts, mean_of_words),
    "noisy_positions": (ragged_tokens, noisy_positions),
    "float64": (lambda: {**numbers(), "batch": 6}, in_float64),
    "evaluating_and_stopping_within": (
        lambda: {**numbers(), "callbacks": lambda: [*evaluating_within(), *stopping_within()]},
        lambda: small(metrics=["mae"]),
    ),
}
