"""Programs that learn to generate, most with a ``train_step`` of their own."""

from __future__ import annotations

from example_programs.data import adam, case, images


def pictures(rows=37):
    return case(images(rows, channels=1, seed=51)[0].clip(0, 1))


def variational_autoencoder():
    """Encoder, sampling with the layer's own seed generator, decoder; three losses that the step tracks."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Sampling(layers.Layer):
        def __init__(self):
            super().__init__()
            self.seed_generator = keras.random.SeedGenerator(1337)

        def call(self, inputs):
            mean, spread = inputs
            noise = keras.random.normal(shape=ops.shape(mean), seed=self.seed_generator)
            return mean + ops.exp(0.5 * spread) * noise

    class Variational(keras.Model):
        def __init__(self):
            super().__init__()
            x = layers.Input((8, 8, 1))
            hidden = layers.Flatten()(layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(x))
            mean, spread = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
            self.encoder = keras.Model(x, [mean, spread, Sampling()([mean, spread])])
            parts = [layers.Input((2,)), layers.Dense(16, "relu"), layers.Reshape((4, 4, 1))]
            parts += [layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid")]
            self.decoder = keras.Sequential(parts)
            names = ("total_loss", "reconstruction_loss", "kl_loss")
            self.trackers = [keras.metrics.Mean(name=name) for name in names]

        @property
        def metrics(self):
            return self.trackers

        def call(self, x):
            return self.decoder(self.encoder(x)[2])

        def train_step(self, data):
            with tf.GradientTape() as tape:
                mean, spread, sampled = self.encoder(data)
                entropy = keras.losses.binary_crossentropy(data, self.decoder(sampled))
                reconstruction = ops.mean(ops.sum(entropy, axis=(1, 2)))
                divergence = -0.5 * (1 + spread - ops.square(mean) - ops.exp(spread))
                divergence = ops.mean(ops.sum(divergence, axis=1))
                total = reconstruction + divergence
            gradients = tape.gradient(total, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            for tracker, value in zip(self.trackers, (total, reconstruction, divergence), strict=True):
                tracker.update_state(value)
            results = [tracker.result() for tracker in self.trackers]
            return dict(
                zip(("loss", "reconstruction_loss", "kl_loss"), results, strict=True)
            )  # not the first one's name

    model = Variational()
    model.compile(adam())
    return model


def vector_quantized():
    """Codes of a table, whose nearest replaces what the encoder says; the layer adds two losses."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Quantizer(layers.Layer):
        def __init__(self, codes, width):
            super().__init__()
            self.table = self.add_weight(shape=(width, codes), initializer="random_uniform", name="codes")

        def call(self, x):
            flat = ops.reshape(x, (-1, self.table.shape[0]))
            distance = ops.sum(flat**2, axis=1, keepdims=True) + ops.sum(self.table**2, axis=0)
            nearest = ops.argmin(distance - 2 * ops.matmul(flat, self.table), axis=1)
            codes = ops.matmul(ops.one_hot(nearest, self.table.shape[1]), ops.transpose(self.table))
            codes = ops.reshape(codes, ops.shape(x))
            self.add_loss(0.25 * ops.mean((ops.stop_gradient(codes) - x) ** 2))
            self.add_loss(ops.mean((codes - ops.stop_gradient(x)) ** 2))
            return x + ops.stop_gradient(codes - x)

    class Trainer(keras.Model):
        def __init__(self):
            super().__init__()
            x = layers.Input((8, 8, 1))
            hidden = layers.Conv2D(2, 1, padding="same")(layers.Conv2D(4, 3, 2, padding="same", activation="relu")(x))
            hidden = layers.Conv2DTranspose(4, 3, 2, padding="same", activation="relu")(Quantizer(5, 2)(hidden))
            self.network = keras.Model(x, layers.Conv2DTranspose(1, 3, padding="same")(hidden))
            self.total, self.quantized = keras.metrics.Mean("total_loss"), keras.metrics.Mean("vq_loss")

        @property
        def metrics(self):
            return [self.total, self.quantized]

        def call(self, x):
            return self.network(x)

        def train_step(self, x):
            with tf.GradientTape() as tape:
                error = ops.mean((x - self.network(x)) ** 2) / 0.1
                added = sum(self.network.losses)
                total = error + added
            variables = self.network.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(total, variables), variables, strict=True))
            self.total.update_state(total)
            self.quantized.update_state(added)
            return {"total_loss": self.total.result(), "vq_loss": self.quantized.result()}

    model = Trainer()
    model.compile(adam())
    return model


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


def diffusion():
    """Images with noise of a random strength; a network that finds the noise, and its moving average."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Diffusion(keras.Model):
        def __init__(self):
            super().__init__()
            self.normalizer = layers.Normalization(mean=[0.5], variance=[0.1])
            self.normalizer.build((None, 8, 8, 1))
            self.network = self.denoiser()
            self.average = keras.models.clone_model(self.network)
            self.average.trainable = False
            self.seeds = keras.random.SeedGenerator(6)
            self.noise_loss, self.image_loss = keras.metrics.Mean("n_loss"), keras.metrics.Mean("i_loss")

        @staticmethod
        def denoiser():
            x, strength = layers.Input((8, 8, 1)), layers.Input((1, 1, 1))
            embedded = layers.UpSampling2D(8)(ops.concatenate([ops.sin(3 * strength), ops.cos(3 * strength)], 3))
            hidden = layers.Concatenate()([layers.Conv2D(4, 1)(x), embedded])
            hidden = layers.BatchNormalization(center=False, scale=False)(hidden)
            hidden = layers.Conv2D(4, 3, padding="same", activation="swish")(hidden)
            return keras.Model([x, strength], layers.Conv2D(1, 1)(hidden))

        @property
        def metrics(self):
            return [self.noise_loss, self.image_loss]

        def call(self, x):
            return self.average([x, ops.ones((ops.shape(x)[0], 1, 1, 1))])

        def train_step(self, images):
            images, rows = self.normalizer(images), ops.shape(images)[0]
            noise = keras.random.normal(ops.shape(images), seed=self.seeds)
            angle = keras.random.uniform((rows, 1, 1, 1), 0.2, 1.4, seed=self.seeds)
            signal, noisy = ops.cos(angle), ops.sin(angle)
            mixed = signal * images + noisy * noise
            with tf.GradientTape() as tape:
                found = self.network([mixed, noisy**2], training=True)
                loss = ops.mean(keras.losses.mean_absolute_error(noise, found))
            weights = self.network.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.noise_loss.update_state(loss)
            self.image_loss.update_state(ops.mean(ops.abs(images - (mixed - noisy * found) / signal)))
            for mine, average in zip(self.network.weights, self.average.weights, strict=True):
                average.assign(0.9 * average + 0.1 * mine)
            return {metric.name: metric.result() for metric in self.metrics}

    model = Diffusion()
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9))
    return model


def flow():
    """The density of points: coupling layers that can be inverted, whose determinants are a part of the loss."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers, ops

    class Flow(keras.Model):
        def __init__(self):
            super().__init__()
            self.masks = np.array([[0, 1], [1, 0]], "f")
            penalty = keras.regularizers.L2(1e-2)
            self.scales = [self.network("tanh", penalty) for _ in self.masks]
            self.shifts = [self.network("linear", penalty) for _ in self.masks]
            self.tracker = keras.metrics.Mean(name="loss")

        @staticmethod
        def network(activation, penalty):
            parts = [layers.Input((2,)), layers.Dense(6, "relu", kernel_regularizer=penalty)]
            return keras.Sequential([*parts, layers.Dense(2, activation, kernel_regularizer=penalty)])

        @property
        def metrics(self):
            return [self.tracker]

        def call(self, x):
            determinant = 0.0
            for mask, scales, shifts in zip(self.masks, self.scales, self.shifts, strict=True):
                masked = x * mask
                s, t = scales(masked) * (1 - mask), shifts(masked) * (1 - mask)
                x = (1 - mask) * (x - t) * ops.exp(-s) + masked
                determinant -= ops.sum(s, axis=1)
            return x, determinant

        def loss_of(self, x):
            y, determinant = self(x)
            return -ops.mean(-0.5 * ops.sum(y**2, axis=1) + determinant) + sum(self.losses)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.loss_of(data)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

        def test_step(self, data):
            self.tracker.update_state(self.loss_of(data))
            return {"loss": self.tracker.result()}

    model = Flow()
    model.compile(adam())
    return model


def moons(rows=49):
    import numpy as np

    random = np.random.RandomState(52)
    angle, side = random.uniform(0, np.pi, rows), random.randint(0, 2, rows) * 2 - 1
    x = np.stack([np.cos(angle) + 0.5 * side, side * np.sin(angle)], axis=1)
    return case((x + 0.1 * random.randn(rows, 2)).astype("f"), validates=True)


PROGRAMS = {
    "variational_autoencoder": (pictures, variational_autoencoder),
    "vector_quantized_autoencoder": (pictures, vector_quantized),
    "wasserstein_gan": (pictures, wasserstein),
    "diffusion": (pictures, diffusion),
    "normalizing_flow": (moons, flow),
}
