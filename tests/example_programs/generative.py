"""Programs that learn to generate, with a ``train_step`` of their own."""

from __future__ import annotations

from example_programs.data import case, images


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


PROGRAMS = {
    "wasserstein_gan": (pictures, wasserstein),
    "diffusion": (pictures, diffusion),
}
