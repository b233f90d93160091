"""Programs on images."""

from __future__ import annotations

from example_programs.data import adam, case, images


def vision_transformer():
    """Patches of an image with a position embedding, attention and dropout, trained with weight decay."""
    import keras
    from keras import layers, ops

    class Patches(layers.Layer):
        def call(self, x):
            patches = ops.image.extract_patches(x, size=2)
            return ops.reshape(patches, (ops.shape(x)[0], 16, 12))

    class Encoder(layers.Layer):
        def __init__(self):
            super().__init__()
            self.projection, self.positions = layers.Dense(8), layers.Embedding(16, 8)

        def call(self, patches):
            return self.projection(patches) + self.positions(ops.expand_dims(ops.arange(16), 0))

    x = layers.Input((8, 8, 3), name="x")
    encoded = Encoder()(Patches()(x))
    hidden = layers.LayerNormalization(epsilon=1e-6)(encoded)
    encoded = layers.Add()([layers.MultiHeadAttention(2, 4, dropout=0.1)(hidden, hidden), encoded])
    hidden = layers.Dense(8, activation="gelu")(layers.LayerNormalization(epsilon=1e-6)(encoded))
    encoded = layers.Add()([layers.Dropout(0.1)(hidden), encoded])
    hidden = layers.Dropout(0.5)(layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(encoded)))
    model = keras.Model(x, layers.Dense(2)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Adam would scale up the gradient of the bias of attention keys, which is rounding.
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9, weight_decay=0.01), loss)
    return model


def frozen_base(trains_base=False):
    """Transfer learning: a base whose statistics stay as they are, and a new head on it."""
    import keras

    layers = keras.layers
    base = keras.Sequential(
        [
            layers.Input((8, 8, 3)),
            layers.Conv2D(4, 3, use_bias=False),  # Adam would scale up the gradient of a bias, which is rounding
            layers.BatchNormalization(),
            layers.Activation("relu"),
        ],
        name="base",
    )
    base.trainable = trains_base
    x = layers.Input((8, 8, 3), name="x")
    hidden = layers.GlobalAveragePooling2D()(base(layers.RandomFlip()(x), training=False))
    model = keras.Model(x, layers.Dense(1, "sigmoid")(layers.Dropout(0.2)(hidden)))
    model.compile(adam(1e-3 if trains_base else 1e-2), "binary_crossentropy")
    return model


def distillation():
    """A student learns the labels and the softened outputs of a fixed teacher, in a ``compute_loss`` of its own."""
    import keras
    from keras import layers, ops

    def network(width, name):
        parts = [layers.Input((8, 8, 3)), layers.Conv2D(width, 3, strides=2), layers.LeakyReLU(0.2), layers.Flatten()]
        return keras.Sequential([*parts, layers.Dense(2)], name=name)

    class Distiller(keras.Model):
        def __init__(self, student, teacher):
            super().__init__()
            self.student, self.teacher = student, teacher
            teacher.trainable = False

        def compile(self, student_loss, distillation_loss, alpha, temperature, **options):
            super().compile(**options)
            self.student_loss, self.distillation_loss = student_loss, distillation_loss
            self.alpha, self.temperature = alpha, temperature

        def call(self, x):
            return self.student(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            taught = ops.softmax(self.teacher(x, training=False) / self.temperature, axis=1)
            learnt = ops.softmax(y_pred / self.temperature, axis=1)
            soft = self.distillation_loss(taught, learnt) * self.temperature**2
            return self.alpha * self.student_loss(y, y_pred) + (1 - self.alpha) * soft

    model = Distiller(network(3, "student"), network(8, "teacher"))
    model.compile(
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        keras.losses.KLDivergence(),
        alpha=0.2,
        temperature=5.0,
        optimizer=adam(),
        metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy")],
    )
    return model


def focal():
    """A loss class and a metric class of one's own: focal loss, and a metric with its own state."""
    import keras
    from keras import ops

    class Focal(keras.losses.Loss):
        def call(self, y, p):
            y = ops.reshape(ops.cast(y, "float32"), (-1, 1))
            p = ops.clip(p, 1e-6, 1 - 1e-6)
            chance = y * p + (1 - y) * (1 - p)
            return ops.mean(-((1 - chance) ** 2) * ops.log(chance), axis=-1)

    class MeanMargin(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="margin")
            self.total = self.add_weight(shape=(), name="total", initializer="zeros")
            self.count = self.add_weight(shape=(), name="count", initializer="zeros")

        def update_state(self, y, p, sample_weight=None):
            margin = (2 * ops.cast(y, "float32") - 1) * (ops.reshape(p, (-1,)) - 0.5)
            self.total.assign_add(ops.sum(margin))
            self.count.assign_add(ops.cast(ops.size(margin), "float32"))

        def result(self):
            return self.total / self.count

    layers = keras.layers
    parts = [layers.Input((8, 8, 3), name="x"), layers.Conv2D(4, 3, activation="relu"), layers.GlobalMaxPooling2D()]
    model = keras.Sequential([*parts, layers.Dense(1, "sigmoid")])
    model.compile(adam(), Focal(), metrics=[MeanMargin()])
    return model


def labeled(validates=True):
    x, label = images()
    return case(x, label.astype("i8"), validates=validates)


PROGRAMS = {
    "vision_transformer": (labeled, vision_transformer),
    "frozen_base": (labeled, frozen_base),
    "distillation": (labeled, distillation),
    "own_loss_and_metric": (labeled, focal),
}
