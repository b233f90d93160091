"""Programs whose optimizers are elsewhere than in ``compile``, or are replaced while they train."""

from __future__ import annotations

import numpy as np
from keras_programs import numbers, small


def with_callback(make):
    return lambda: {**numbers(), "callbacks": lambda: [make()]}


def own_step(apply):
    """A network whose ``train_step`` hands its gradients to a function."""
    import keras
    import tensorflow as tf

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = self.compute_loss(x, y, p)
            apply(self, tape.gradient(loss, self.trainable_variables))
            return self.compute_metrics(x, y, p)

    return small("sgd", model_class=Own)


def of_the_module():
    """As in a tutorial of GANs: one network and its optimizer are kept by no model."""
    import keras
    import tensorflow as tf

    helper = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
    optimizers = keras.optimizers.Adam(0.05), keras.optimizers.Adam(0.02)

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                p = self(x, training=True)
                close = tf.reduce_mean(tf.square(p - tf.stop_gradient(helper(x))))
                loss = self.compute_loss(x, y, p) + 0.1 * close
                of_helper = tf.reduce_mean(tf.square(tf.stop_gradient(p) - helper(x)))
            optimizers[0].apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            optimizers[1].apply(tape.gradient(of_helper, helper.trainable_variables), helper.trainable_variables)
            return self.compute_metrics(x, y, p)

    return small("sgd", model_class=Own)


def gathered():
    """Applies the mean of the gradients of every three steps, which it gathers in variables of TensorFlow.

    The optimizer is in a dict of the model's.
    """
    import keras
    import tensorflow as tf

    def apply(model, grads):
        def use():
            model.kept["all"].apply([tf.identity(total) for total in model.sums], model.trainable_variables)
            for total in model.sums:
                total.assign(tf.zeros_like(total))

        for total, gradient in zip(model.sums, grads, strict=True):
            total.assign_add(gradient / 3)
        tf.cond(model.at.assign_add(1) % 3 == 0, use, lambda: None)

    model = own_step(apply)
    model.kept = {"all": keras.optimizers.Adam(0.05)}
    model.at = tf.Variable(0, trainable=False)
    model.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in model.trainable_variables]
    return model


def frozen_first():
    model = small()
    model.layers[0].trainable = False
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def thaw():
    """After the first epoch, a frozen layer learns, too, with other settings; a second time at the second's begin."""
    import keras

    class Thaw(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.model.layers[0].trainable = True
                loss = keras.losses.MeanSquaredError(reduction="sum")
                self.model.compile(keras.optimizers.Adam(0.01), loss, metrics=["mae"])
                self.model.make_train_function()

    return Thaw()


def another_optimizer():
    import keras

    class Change(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2 and type(self.model.optimizer) is keras.optimizers.SGD:
                self.model.optimizer = keras.optimizers.Adam(0.02)
                self.model.make_train_function(force=True)

    return Change()


def once_by_hand():
    """In its fourth step, it also changes the weights by the gradient of a worker's own rows."""
    import tensorflow as tf

    def apply(model, grads):
        model.optimizer.apply(grads, model.trainable_variables)
        kernel = model.trainable_variables[0]
        tf.cond(model.optimizer.iterations == 4, lambda: kernel.assign_sub(grads[0]), lambda: kernel.value)

    return own_step(apply)


def compiled_within():
    import keras

    class Again(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.compile("sgd", "mse")
            self.model.make_train_function()

    return Again()


def noise():
    """Noise on the weights, drawn anew in each process."""
    import keras

    class Noise(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kernel = self.model.trainable_variables[0]
            kernel.assign_add(np.random.default_rng().standard_normal(kernel.shape))

    return Noise()


FAIL = {  # what is said, on all workers
    "once_by_hand": (numbers, once_by_hand, "changes these weights in another way than with an optimizer of Keras"),
    "noise": (with_callback(noise), small, "different weights after epoch 1: ['sequential/dense/kernel'], 1 of 4"),
    "compiled_within": (with_callback(compiled_within), small, "has called compile() within an epoch"),
}
OPTIMIZERS = {
    "of_the_module": (numbers, of_the_module),
    "gathered": (numbers, gathered),
    "thaw": (with_callback(thaw), frozen_first),
    "another_optimizer": (with_callback(another_optimizer), lambda: small("sgd")),
}
