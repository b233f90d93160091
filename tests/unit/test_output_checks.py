"""Outputs that are not what the loss takes them for."""

from __future__ import annotations

import numpy as np
import pytest

from tfos_ml.errors import ModelError
from tfos_ml.inference.prediction import BINARY, MULTICLASS, LossInfo, PredictionSpec, classify
from tfos_ml.keras.output_checks import activation_problem, check_activations, value_problem

SPARSE = "sparse_categorical_crossentropy"
LOGITS = np.array([[9.4, -2.8, 0.1], [0.5, 0.2, 0.3]])


@pytest.fixture(scope="module")
def keras():
    import keras

    return keras


class TestActivations:
    @pytest.mark.parametrize(
        ("loss", "activation", "width", "remedy"),
        [
            (LossInfo(SPARSE), "linear", 5, "activation='softmax', or compile with loss=keras.losses.Sparse"),
            (LossInfo("CategoricalCrossentropy"), "linear", 5, "CategoricalCrossentropy(from_logits=True)"),
            (LossInfo("binary_crossentropy"), "linear", 1, "'sigmoid', or compile with loss=keras.losses.BinaryCross"),
            (LossInfo("kl_divergence"), "linear", 5, "Give its layer activation='softmax'."),
            (LossInfo(SPARSE), "softmax", 1, "softmax over one unit, which is always 1"),
            (LossInfo(SPARSE, from_logits=True), "softmax", 5, "Compile it without from_logits"),
            (LossInfo("BinaryCrossentropy", from_logits=True), "sigmoid", 1, "Compile it without from_logits"),
        ],
    )
    def test_that_a_loss_does_not_go_with(self, loss, activation, width, remedy):
        assert remedy in activation_problem(loss, "out", activation, width)

    @pytest.mark.parametrize(
        ("loss", "activation"),
        [
            (LossInfo(SPARSE), "softmax"),
            (LossInfo(SPARSE), None),  # not known
            (LossInfo(SPARSE, from_logits=True), "linear"),
            (LossInfo("binary_crossentropy"), "sigmoid"),
            (LossInfo("mse"), "linear"),
            (LossInfo(SPARSE, from_keras=False), "linear"),
        ],
    )
    def test_that_it_goes_with(self, loss, activation):
        assert activation_problem(loss, "out", activation, 5) is None


class TestModels:
    """Which activation is found, and that nothing is said of what is not known for certain."""

    def check(self, keras, *layers, loss=SPARSE):
        from tfos_ml.keras.inspection import describe

        model = keras.Sequential([keras.layers.Input((4,)), *layers])
        model.compile("sgd", loss)
        check_activations(describe(model))

    @pytest.mark.parametrize("wrap", ["nested", "reshaped", "linear"])
    def test_one_behind_layers_that_keep_its_values(self, keras, wrap):
        layers = keras.layers
        dense = layers.Dense(6)
        last = {
            "nested": [keras.Sequential([layers.Input((4,)), dense])],
            "reshaped": [dense, layers.Reshape((2, 3))],
            "linear": [dense, layers.Activation("linear")],
        }[wrap]
        with pytest.raises(ModelError, match="has no activation"):
            self.check(keras, *last)

    def test_what_may_well_be_probabilities(self, keras):
        class Own(keras.layers.Dense):
            def call(self, x):
                return keras.ops.softmax(super().call(x))

        layers = keras.layers
        for last in (
            [layers.Dense(5, activation="softmax")],
            [layers.Dense(5), layers.Softmax()],
            [layers.Dense(5), layers.Activation("softmax")],
            [layers.Dense(5), layers.Lambda(keras.ops.softmax)],
            [layers.Dense(5, kernel_constraint="non_neg")],
            [layers.Dense(5, trainable=False)],
            [Own(5)],
        ):
            self.check(keras, *last)
        self.check(keras, layers.Dense(5), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        self.check(keras, layers.Dense(5), loss="mse")


class TestValues:
    def test_that_are_no_probabilities(self):
        said = value_problem(LossInfo(SPARSE), "out", LOGITS)
        assert "values from -2.8 to 9.4" in said
        assert "from_logits=True" in said

    @pytest.mark.parametrize(("kind", "values"), [(MULTICLASS, LOGITS), (BINARY, np.array([[-0.4], [1.7]]))])
    def test_are_never_given_as_probabilities(self, kind, values):
        with pytest.raises(ModelError, match="but its loss expects probabilities"):
            classify(values, PredictionSpec(kind), 0.5)
        found = classify(values, PredictionSpec(kind, from_logits=True), 0.5)
        np.testing.assert_allclose(found["probability"].sum(axis=1), 1)
