"""Programs of the kinds that keras.io shows: tables, images, and images that are generated."""

from __future__ import annotations

import numpy as np

from example_programs.data import adam, case, images


def patients(rows=45):
    random = np.random.RandomState(21)
    x = {
        "age": random.uniform(20, 80, rows).astype("f"),
        "vessels": random.randint(0, 4, rows).astype("i4"),
        "pain": random.choice(["none", "typical", "atypical"], rows),
        "pressure": random.normal(130, 15, rows).astype("f"),
    }
    risk = (x["age"] - 50) / 10 + (x["pain"] == "typical") * 2 + x["vessels"] - 2
    return x, (risk + random.randn(rows) > 0).astype("f")


def feature_space():
    """Raw columns, numbers and strings, through a FeatureSpace with crosses into a small network."""
    import keras
    import tensorflow as tf

    kinds = keras.utils.FeatureSpace
    space = kinds(
        features={
            "age": kinds.float_discretized(num_bins=5),
            "vessels": kinds.integer_categorical(num_oov_indices=0),
            "pain": kinds.string_categorical(num_oov_indices=0),
            "pressure": kinds.float_normalized(),
        },
        crosses=[kinds.cross(("vessels", "pain"), crossing_dim=8)],
        output_mode="concat",
    )
    space.adapt(tf.data.Dataset.from_tensor_slices(patients()[0]).batch(16))
    hidden = keras.layers.Dense(8, "relu")(space.get_encoded_features())
    hidden = keras.layers.Dropout(0.5)(hidden)
    model = keras.Model(space.get_inputs(), keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile(adam(), "binary_crossentropy", metrics=["accuracy"])
    return model


def labeled():
    x, label = images()
    return case(x, label.astype("i8"), validates=True)


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


def pictures(rows=37):
    return case(images(rows, channels=1, seed=51)[0].clip(0, 1))


def wasserstein():
    """A GAN whose critic is updated twice a step, with a penalty on its gradient between real and fake images."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Wasserstein(keras.Model):
        def __init__(self):
            super().__init__()
            parts = [layers.Input((8, 8, 1)), layers.Conv2D(4, 5, 2, padding="same"), layers.LeakyReLU(0.2)]
            self.critic = keras.Sequential([*parts, layers.Dropout(0.3), layers.Flatten(), layers.Dense(1)])
            parts = [layers.Input((3,)), layers.Dense(32, use_bias=False), layers.BatchNormalization()]
            parts += [layers.LeakyReLU(0.2), layers.Reshape((4, 4, 2)), layers.UpSampling2D()]
            self.generator = keras.Sequential([*parts, layers.Conv2D(1, 3, padding="same", activation="sigmoid")])
            self.seeds = keras.random.SeedGenerator(5)

        def compile(self, d_optimizer, g_optimizer):
            super().compile()
            self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

        def call(self, x):
            return self.critic(x)

        def penalty(self, real, fake):
            alpha = keras.random.uniform((ops.shape(real)[0], 1, 1, 1), seed=self.seeds)
            between = real + alpha * (fake - real)
            with tf.GradientTape() as tape:
                tape.watch(between)
                said = self.critic(between, training=True)
            norm = ops.sqrt(ops.sum(tape.gradient(said, between) ** 2, axis=(1, 2, 3)) + 1e-8)
            return ops.mean((norm - 1) ** 2)

        def noise(self, rows):
            return keras.random.normal((rows, 3), seed=self.seeds)

        def train_step(self, real):
            rows = ops.shape(real)[0]
            for _ in range(2):
                with tf.GradientTape() as tape:
                    fake = self.generator(self.noise(rows), training=True)
                    gap = ops.mean(self.critic(fake, training=True)) - ops.mean(self.critic(real, training=True))
                    d_loss = gap + 10 * self.penalty(real, fake)
                weights = self.critic.trainable_variables
                self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
            with tf.GradientTape() as tape:
                g_loss = -ops.mean(self.critic(self.generator(self.noise(rows), training=True), training=True))
            weights = self.generator.trainable_variables
            self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
            return {"d_loss": d_loss, "g_loss": g_loss}

    model = Wasserstein()
    model.compile(keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.01, momentum=0.5))
    return model


EXAMPLES = {
    "feature_space": (lambda: case(*patients(), validates=True), feature_space),
    "distillation": (labeled, distillation),
    "wasserstein_gan": (pictures, wasserstein),
}
