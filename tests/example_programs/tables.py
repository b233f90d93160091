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


PROGRAMS = {
    "feature_space": (lambda: case(*patients(), validates=True), feature_space),
}
