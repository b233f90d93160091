"""Programs on rows of tables."""

from __future__ import annotations

import numpy as np

from example_programs.data import adam, case, sgd


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


def frauds(rows=61):
    random = np.random.RandomState(22)
    x = random.randn(rows, 6).astype("f")
    y = (x[:, 0] + x[:, 1] > 1.4).astype("f")
    share = float(y.mean())
    return case(x, y, validates=True, class_weight={0: 1 / (1 - share), 1: 1 / share})


def class_imbalance():
    """Rare positives: weights of classes, and the metrics that matter."""
    import keras

    layers, metrics = keras.layers, keras.metrics
    model = keras.Sequential(
        [
            layers.Input((6,), name="x"),
            layers.Dense(8, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.Dropout(0.3),
            layers.Dense(1, "sigmoid"),
        ]
    )
    counts = [getattr(metrics, name)(name=name.lower()) for name in ("FalseNegatives", "TruePositives", "Recall")]
    model.compile(adam(), "binary_crossentropy", metrics=[*counts, metrics.AUC(name="auc")])
    return model


def quantiles_data(rows=53):
    random = np.random.RandomState(23)
    x = random.uniform(-1, 1, (rows, 3)).astype("f")
    y = (x.sum(1) + (1 + x[:, 0]) * random.standard_exponential(rows)).astype("f")
    return case(x, dict.fromkeys(("low", "middle", "high"), y), validates=True)


def quantiles():
    """A pinball loss for each of three outputs, and a cyclic learning rate by a callback."""
    import keras

    def pinball(quantile):
        def loss(y, p):
            error = keras.ops.reshape(y, (-1, 1)) - p
            return keras.ops.mean(keras.ops.maximum(quantile * error, (quantile - 1) * error), axis=-1)

        return loss

    x = keras.layers.Input((3,), name="x")
    hidden = keras.layers.Dense(8, "tanh")(x)
    outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("low", "middle", "high")}
    model = keras.Model(x, outputs)
    losses = {"low": pinball(0.1), "middle": pinball(0.5), "high": pinball(0.9)}
    model.compile(adam(), losses, loss_weights={"low": 2.0, "middle": 1.0, "high": 2.0})
    return model


def cyclic_rate():
    import keras

    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.01 if epoch % 2 else 0.02)]


def ratings(rows=67):
    random = np.random.RandomState(24)
    x = np.stack([random.randint(0, 12, rows), random.randint(0, 20, rows)], axis=1)
    return case(x, random.uniform(0, 1, rows).astype("f"), validates=True)


def collaborative_filtering():
    """Users and movies: a product of embeddings and two biases, with penalties on the tables."""
    import keras
    from keras import layers, ops

    class Recommender(keras.Model):
        def __init__(self):
            super().__init__()
            penalty = keras.regularizers.L2(1e-4)
            options = {"embeddings_initializer": "he_normal", "embeddings_regularizer": penalty}
            self.users, self.movies = layers.Embedding(12, 4, **options), layers.Embedding(20, 4, **options)
            self.user_bias, self.movie_bias = layers.Embedding(12, 1), layers.Embedding(20, 1)

        def call(self, inputs):
            user, movie = inputs[:, 0], inputs[:, 1]
            product = ops.sum(self.users(user) * self.movies(movie), axis=1, keepdims=True)
            return ops.sigmoid(product + self.user_bias(user) + self.movie_bias(movie))

    model = Recommender()
    model.compile(adam(), keras.losses.BinaryCrossentropy(), metrics=["mae"])
    return model


def retrievals(rows=51):
    random = np.random.RandomState(25)
    labels = {"movie": random.randint(0, 20, rows), "rating": random.uniform(0, 1, rows).astype("f")}
    return case(random.randint(0, 12, rows), labels)


def retrieval():
    """Two towers whose ``compute_loss`` looks the movie of the label up; with an optimizer for sparse rows."""
    import keras

    class Towers(keras.Model):
        def __init__(self):
            super().__init__()
            self.users, self.movies = keras.layers.Embedding(12, 4), keras.layers.Embedding(20, 4)

        def build(self, shape):
            self.users.build(shape)
            self.movies.build(shape)

        def call(self, users):
            return {"users": self.users(users)}

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            scores = keras.ops.sum(y_pred["users"] * self.movies(y["movie"]), axis=1)
            return keras.ops.mean((scores - y["rating"]) ** 2)

    model = Towers()
    model.compile(keras.optimizers.Adagrad(0.1))
    return model


def faces(rows=39):
    random = np.random.RandomState(26)
    x = random.rand(rows, 8, 8, 1).astype("f")
    y = {"age": (80 * x.mean((1, 2, 3))).astype("f") - 40, "smiles": random.randint(0, 3, rows)}
    w = {"age": random.uniform(0.2, 2, rows).astype("f"), "smiles": (random.rand(rows) > 0.3).astype("f")}
    return case(x, y, w, validates=True)


def several_outputs():
    """Two heads on one base, each with a loss, a weight of the loss, and weights of the rows of its own."""
    import keras

    layers = keras.layers
    x = layers.Input((8, 8, 1), name="x")
    hidden = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, activation="relu")(x))
    outputs = {"age": layers.Dense(1, name="age")(hidden), "smiles": layers.Dense(3, "softmax", name="smiles")(hidden)}
    model = keras.Model(x, outputs)
    model.compile(
        adam(),
        {"age": "mse", "smiles": "sparse_categorical_crossentropy"},
        loss_weights={"age": 0.01, "smiles": 1.0},
        metrics={"age": ["mae"]},
        weighted_metrics={"age": ["mse"], "smiles": ["sparse_categorical_crossentropy"]},
    )
    return model


def experts():
    """A mixture of experts: a gate weighs small networks for each row."""
    import keras
    from keras import layers, ops

    class Mixture(layers.Layer):
        def __init__(self, count, units):
            super().__init__()
            self.experts = [layers.Dense(units, "tanh") for _ in range(count)]
            self.gate = layers.Dense(count, "softmax")

        def call(self, x):
            stacked = ops.stack([expert(x) for expert in self.experts], axis=2)
            return ops.sum(stacked * ops.expand_dims(self.gate(x), 1), axis=2)

    x = layers.Input((6,), name="x")
    hidden = layers.BatchNormalization()(layers.Dense(6, use_bias=False)(x))
    model = keras.Model(x, layers.Dense(1, "sigmoid")(Mixture(3, 4)(hidden)))
    model.compile(sgd(), "binary_crossentropy")
    return model


PROGRAMS = {
    "feature_space": (lambda: case(*patients(), validates=True), feature_space),
    "class_imbalance": (frauds, class_imbalance),
    "quantile_regression": (lambda: {**quantiles_data(), "callbacks": cyclic_rate}, quantiles),
    "collaborative_filtering": (ratings, collaborative_filtering),
    "two_tower_retrieval": (retrievals, retrieval),
    "outputs_with_row_weights": (faces, several_outputs),
    "mixture_of_experts": (lambda: {**frauds(), "class_weight": {}, "val": None}, experts),
}
