"""Programs that learn what is similar."""

from __future__ import annotations

import numpy as np

from example_programs.data import case, images, sgd


def pairs(rows=37):
    x, label = images(rows, channels=1)
    order = np.random.RandomState(61).permutation(rows)
    return case({"left": x, "right": x[order]}, (label != label[order]).astype("f"), validates=True)


def tower(*layers_after):
    import keras

    layers = keras.layers
    parts = [layers.Input((8, 8, 1)), layers.BatchNormalization(), layers.Conv2D(4, 3, activation="tanh")]
    parts += [layers.AveragePooling2D(2), layers.Flatten(), layers.Dense(4), *layers_after]
    return keras.Sequential(parts)


def siamese():
    """Two images through one network; the contrastive loss of their distance."""
    import keras
    from keras import layers, ops

    def distance(vectors):
        left, right = vectors
        squares = ops.sum(ops.square(left - right), axis=1, keepdims=True)
        return ops.sqrt(ops.maximum(squares, keras.backend.epsilon()))

    def contrastive(y, p):
        y = ops.reshape(y, (-1, 1))
        return ops.mean((1 - y) * ops.square(p) + y * ops.square(ops.maximum(1 - p, 0)))

    shared = tower()
    inputs = [layers.Input((8, 8, 1), name=name) for name in ("left", "right")]
    merged = layers.Lambda(distance, output_shape=(1,))([shared(x) for x in inputs])
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(layers.BatchNormalization()(merged)))
    model.compile(sgd(), contrastive, metrics=["mae"])
    return model


def triples(rows=35):
    x, label = images(rows, channels=1)
    random = np.random.RandomState(62)
    positive, negative = ([random.choice(np.flatnonzero((label == y) == same)) for y in label] for same in (1, 0))
    return case({"anchor": x, "positive": x[positive], "negative": x[negative]}, validates=True)


def triplet():
    """Three images; steps of one's own whose loss has a value for each row."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Distances(layers.Layer):
        def call(self, anchor, positive, negative):
            return ops.sum(ops.square(anchor - positive), -1), ops.sum(ops.square(anchor - negative), -1)

    class Siamese(keras.Model):
        def __init__(self, network, margin=0.5):
            super().__init__()
            self.network, self.margin = network, margin
            self.loss_tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.loss_tracker]

        def call(self, inputs):
            return self.network(inputs)

        def loss_of(self, data):
            near, far = self.network(data)
            return ops.maximum(near - far + self.margin, 0.0)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.loss_of(data)
            weights = self.network.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.loss_tracker.update_state(loss)
            return {"loss": self.loss_tracker.result()}

        def test_step(self, data):
            self.loss_tracker.update_state(self.loss_of(data))
            return {"loss": self.loss_tracker.result()}

    inputs = {name: layers.Input((8, 8, 1), name=name) for name in ("anchor", "positive", "negative")}
    shared = tower()
    model = Siamese(keras.Model(inputs, Distances()(*(shared(x) for x in inputs.values()))))
    model.compile(sgd(0.01))  # the gradient of the last bias is rounding, as it cancels in a distance
    return model


def supervised_contrastive():
    """Outputs of one label near each other: a loss over all pairs of rows in a batch, which is a loss of outputs."""
    import keras
    from keras import layers, ops

    class Contrastive(keras.losses.Loss):
        def __call__(self, y, vectors, sample_weight=None):
            unit = ops.normalize(vectors, axis=1)
            logits = ops.matmul(unit, ops.transpose(unit)) / 0.5
            same = ops.cast(ops.equal(ops.reshape(y, (-1, 1)), ops.reshape(y, (1, -1))), "float32")
            same = same / ops.sum(same, axis=1, keepdims=True)
            return ops.mean(ops.sum(-same * ops.log_softmax(logits, axis=1), axis=1))

    model = tower(layers.Dense(3))
    model.compile(sgd(), Contrastive())
    return model


def labeled():
    x, label = images(channels=1)
    return case(x, label, validates=True)


PROGRAMS = {
    "siamese": (pairs, siamese),
    "triplet": (triples, triplet),
    "supervised_contrastive": (labeled, supervised_contrastive),
}
