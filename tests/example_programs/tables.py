"""Programs on rows of tables."""

from __future__ import annotations

import numpy as np

from example_programs.data import adam, case


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


PROGRAMS = {
    "feature_space": (lambda: case(*patients(), validates=True), feature_space),
    "class_imbalance": (frauds, class_imbalance),
    "two_tower_retrieval": (retrievals, retrieval),
    "outputs_with_row_weights": (faces, several_outputs),
}
