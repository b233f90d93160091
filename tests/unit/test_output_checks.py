"""Outputs that are not what the loss takes them for."""

from __future__ import annotations

import numpy as np
import pytest

from tfos_ml.errors import ModelError
from tfos_ml.inference.prediction import BINARY, MULTICLASS, LossInfo, PredictionSpec, classify
from tfos_ml.keras.output_checks import activation_problem, check_activations, sum_notice, value_problem

SPARSE = "sparse_categorical_crossentropy"
LOGITS = np.array([[9.4, -2.8, 0.1], [0.5, 0.2, 0.3]])
SHARES = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])


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

    def test_a_last_layer_without_activation(self, keras):
        with pytest.raises(ModelError, match="Output 'scores' has no activation.*from_logits=True"):
            self.check(keras, keras.layers.Dense(5, name="scores"))

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

    def test_of_several_outputs_the_one_is_named(self, keras):
        from tfos_ml.keras.inspection import describe

        x = keras.layers.Input((4,))
        outputs = {"kind": keras.layers.Dense(3)(x), "size": keras.layers.Dense(1)(x)}
        model = keras.Model(x, outputs)
        model.compile("sgd", {"kind": SPARSE, "size": "mse"})
        with pytest.raises(ModelError, match="Output 'kind'"):
            check_activations(describe(model))


class TestValues:
    def test_that_are_no_probabilities(self):
        said = value_problem(LossInfo(SPARSE), "out", LOGITS)
        assert "values from -2.8 to 9.4" in said
        assert "from_logits=True" in said

    def test_probabilities_that_are_taken_for_logits(self):
        assert "add up to 1 in each row" in value_problem(LossInfo(SPARSE, from_logits=True), "out", SHARES)

    @pytest.mark.parametrize(
        ("loss", "values"),
        [
            (LossInfo(SPARSE), SHARES),
            (LossInfo(SPARSE), np.full((2, 3), np.nan)),
            (LossInfo(SPARSE, from_logits=True), LOGITS),
            (LossInfo("BinaryCrossentropy", from_logits=True), np.array([[0.3], [0.4]])),
            (LossInfo("mse"), LOGITS),
        ],
    )
    def test_that_are_right(self, loss, values):
        assert value_problem(loss, "out", values) is None
        assert sum_notice(loss, "out", values) is None

    def test_of_a_sigmoid_for_each_class(self):
        assert "add up to 1.4 to 1.4" in sum_notice(LossInfo(SPARSE), "out", np.full((2, 2), 0.7))

    @pytest.mark.parametrize(("kind", "values"), [(MULTICLASS, LOGITS), (BINARY, np.array([[-0.4], [1.7]]))])
    def test_are_never_given_as_probabilities(self, kind, values):
        with pytest.raises(ModelError, match="where its loss expects probabilities"):
            classify(values, PredictionSpec(kind), 0.5)
        found = classify(values, PredictionSpec(kind, from_logits=True), 0.5)
        np.testing.assert_allclose(found["probability"].sum(axis=1), 1)
