"""Programs that compute over the rows of a batch by themselves, and what is said of each before the first step."""

from __future__ import annotations

import functools

from keras_programs import in_batch_negatives, noisy_positions, numbers, ragged_tokens, sampling, small
from optimizer_programs import own_step

ERROR = "Two workers would not train this model as one does"
EXACT = ""


def mixing():
    """A network with a layer that mixes each row with its neighbor."""
    import keras

    class Coupled(keras.layers.Layer):
        def call(self, x):
            return 0.5 * x + 0.5 * keras.ops.roll(x, 1, axis=0)

    x = keras.layers.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(1)(Coupled()(keras.layers.Dense(5, "tanh")(x))))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def hardest_rows():
    """A ``compute_loss``, which we cannot split, of the three rows with the largest errors."""
    import keras
    from keras import ops

    class Own(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            squares = ops.square(ops.reshape(y, (-1, 1)) - y_pred)
            return ops.mean(ops.top_k(ops.reshape(squares, (-1,)), 3)[0])

    return small(model_class=Own)


def counting_its_own_loss():
    """After keras.io's masked language model: ``metrics`` has a mean of the program's own, and none of Keras's."""
    import keras
    from keras import ops

    class Masked(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            losses = ops.square(ops.reshape(y, (-1, 1)) - y_pred)
            tracker.update_state(losses)
            return ops.sum(losses)

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {"loss": tracker.result()}

        @property
        def metrics(self):
            return [tracker]

    tracker = keras.metrics.Mean(name="loss")
    return small(model_class=Masked)


def assigning(update):
    """A layer that assigns a variable from the rows of each batch."""
    import keras

    class Remembers(keras.layers.Layer):
        def build(self, shape):
            self.memory = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="memory")

        def call(self, x, training=None):
            if training:
                self.memory.assign(update(keras.ops, self.memory, x))
            return x + 0.0

    x = keras.layers.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(1)(Remembers()(x)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def counting(of_rows, kind="int64"):
    """A layer that counts rows, or calls, in Keras's variable or (`kind` is None) in one of TensorFlow."""
    import keras
    import tensorflow as tf

    class Counts(keras.layers.Layer):
        def build(self, shape):
            self.count = tf.Variable(0.0) if kind is None else self.add_weight((), "zeros", kind, trainable=False)

        def call(self, x, training=False):
            if training:
                more = tf.shape(x)[0] if of_rows else 1
                self.count.assign_add(tf.cast(more, self.count.dtype))
            return x

    x = keras.layers.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(1)(Counts()(x)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def clipped_by_hand():
    """Gradients that a step scales by their own norm, before they are summed."""
    import tensorflow as tf

    def apply(model, gradients):
        model.optimizer.apply(tf.clip_by_global_norm(gradients, 0.01)[0], model.trainable_variables)

    return own_step(apply)


def from_warm_up():
    """Compares the rows of a batch, with a weight that is zero until a callback changes it."""
    import keras

    class Warm(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            contrast = keras.ops.square(keras.ops.mean(y_pred) - keras.ops.max(y_pred))
            return super().compute_loss(x, y, y_pred) + self.beta * contrast

    model = small(model_class=Warm)
    model.beta = keras.Variable(0.0, trainable=False)
    return model


def of_tensorflow():
    """An optimizer that is not one of Keras."""
    import tensorflow as tf

    def apply(model, gradients):
        model.adam.apply_gradients(zip(gradients, [v.value for v in model.trainable_variables], strict=True))

    model = own_step(apply)
    model.adam = tf.compat.v1.train.AdamOptimizer(0.05)
    return model


WRONG = {  # the program, and what is said
    "layer: mixes neighboring rows": (mixing, ERROR),
    "step: hardest rows": (hardest_rows, ERROR),
    "metrics: a mean of its own": (counting_its_own_loss, EXACT),
    "step: clips gradients by hand": (clipped_by_hand, "Their norm is 0.01 on all rows, 0.01 and 0.01 on the shares"),
    "step: compares rows once a callback says so": (from_warm_up, ERROR),
    "step: an optimizer of TensorFlow's": (of_tensorflow, f"{ERROR}. A training step changes the weights"),
    "loss: pairs of rows": (in_batch_negatives, EXACT),
    "state: the largest row": (
        functools.partial(assigning, lambda ops, memory, x: ops.maximum(memory, ops.max(x, axis=0))),
        "several workers do not assign the same",
    ),
    "state: mean of rows": (
        functools.partial(assigning, lambda ops, memory, x: 0.9 * memory + 0.1 * ops.mean(x, axis=0)),
        EXACT,
    ),
    "state: number of steps": (functools.partial(counting, False), EXACT),
    "draws for selected words": (
        functools.partial(noisy_positions, select=True),
        "no fixed number of entries for each row",
    ),
    "draws of TensorFlow": (sampling, "draws random numbers"),
}
ROWS = {"draws for selected words": ragged_tokens, "draws of TensorFlow": functools.partial(numbers, width=16)}
