"""Programs that learn what is similar."""

from __future__ import annotations

import numpy as np

from example_programs.data import case, images, sgd


def tower():
    import keras

    layers = keras.layers
    parts = [layers.Input((8, 8, 1)), layers.BatchNormalization(), layers.Conv2D(4, 3, activation="tanh")]
    parts += [layers.AveragePooling2D(2), layers.Flatten(), layers.Dense(4)]
    return keras.Sequential(parts)


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


PROGRAMS = {
    "triplet": (triples, triplet),
}
