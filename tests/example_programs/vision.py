"""Programs on images."""

from __future__ import annotations

from example_programs.data import adam, case, images


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


def labeled(validates=True):
    x, label = images()
    return case(x, label.astype("i8"), validates=validates)


PROGRAMS = {
    "frozen_base": (labeled, frozen_base),
    "distillation": (labeled, distillation),
}
