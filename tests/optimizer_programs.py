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

    def apply(model, grads):
        optimizers[0].apply_gradients(zip(grads, model.trainable_variables, strict=True))

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


def one_for_each_layer():
    """Each layer learns by itself, as in the forward-forward algorithm."""
    import keras
    import tensorflow as tf

    class Alone(keras.layers.Dense):
        def build(self, shape):
            super().build(shape)
            self.learner = keras.optimizers.Adam(0.03)

        def learn(self, x, target):
            with tf.GradientTape() as tape:
                goodness = tf.reduce_mean(tf.square(self(x)), axis=-1)
                loss = tf.reduce_mean(tf.nn.softplus(-target * (goodness - 1.0)))
            self.learner.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            return tf.stop_gradient(self(x)), loss

    class Stack(keras.Sequential):
        def train_step(self, data):
            x, y = data
            target = tf.sign(tf.reshape(y, [-1]))
            losses = []
            for layer in self.layers:
                x, loss = layer.learn(x, target)
                losses.append(loss)
            return {"loss": tf.add_n(losses)}

    model = Stack([keras.layers.Input((4,), name="x"), Alone(6, "tanh"), Alone(1)])
    model.compile("sgd", "mse")
    return model


def gathered():
    """Applies the mean of the gradients of every three steps, which it gathers in variables of TensorFlow.

    The optimizer is in a dict of the model's.
    """
    import keras
    import tensorflow as tf

    class Gathers(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = self.compute_loss(x, y, p)
            for total, gradient in zip(self.sums, tape.gradient(loss, self.trainable_variables), strict=True):
                total.assign_add(gradient / 3)
            tf.cond(self.at.assign_add(1) % 3 == 0, self.use, lambda: None)
            return self.compute_metrics(x, y, p)

        def use(self):
            self.kept["all"].apply([tf.identity(total) for total in self.sums], self.trainable_variables)
            for total in self.sums:
                total.assign(tf.zeros_like(total))

    model = small("sgd", model_class=Gathers)
    model.kept = {"all": keras.optimizers.Adam(0.05)}
    model.at = tf.Variable(0, trainable=False)
    model.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in model.trainable_variables]
    return model


def by_hand():
    """Gradient descent without an optimizer."""

    def apply(model, grads):
        for variable, gradient in zip(model.trainable_variables, grads, strict=True):
            variable.assign_sub(0.05 * gradient)

    return own_step(apply)


def looking_ahead():
    """Every five steps the weights go back half of the way; all workers do so alike."""
    import keras
    import tensorflow as tf

    def apply(model, grads):
        model.optimizer.apply(grads, model.trainable_variables)

        def back():
            for slow, fast in zip(model.slow, model.trainable_variables, strict=True):
                slow.assign_add(0.5 * (fast - slow))
                fast.assign(slow)

        tf.cond(model.optimizer.iterations % 5 == 4, back, lambda: None)

    model = own_step(apply)
    model.optimizer = keras.optimizers.Adam(0.05)
    model.slow = [tf.Variable(v, trainable=False) for v in model.trainable_variables]
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
    "one_for_each_layer": (numbers, one_for_each_layer),
    "gathered": (numbers, gathered),
    "by_hand": (numbers, by_hand),
    "looking_ahead": (numbers, looking_ahead),
    "thaw": (with_callback(thaw), frozen_first),
    "another_optimizer": (with_callback(another_optimizer), lambda: small("sgd")),
}
