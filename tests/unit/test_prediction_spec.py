import numpy as np
import pytest

from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.schema import ColumnSpec
from tfos_ml.errors import ModelError, ShapeError
from tfos_ml.inference.prediction import (
    BINARY,
    MULTICLASS,
    PLAIN,
    LossInfo,
    PredictionSpec,
    classify,
    label_constraint,
    prediction_spec_of,
)

THREE, ONE, FLAT = (TensorInfo("float32", shape) for shape in [(None, 3), (None, 1), (None,)])
UNKNOWN = TensorInfo("float32", None)
STEPS = TensorInfo("float32", (None, 7, 3))


def test_the_head_follows_loss_and_output():
    for loss, output, kind in (
        ("SparseCategoricalCrossentropy", THREE, MULTICLASS),
        ("CategoricalCrossentropy", THREE, MULTICLASS),
        ("categorical_crossentropy", UNKNOWN, MULTICLASS),
        ("sparse_categorical_crossentropy", STEPS, PLAIN),
        ("BinaryCrossentropy", ONE, BINARY),
        ("binary_crossentropy", FLAT, BINARY),
        ("binary_crossentropy", THREE, PLAIN),
        ("MeanSquaredError", ONE, PLAIN),
    ):
        head = prediction_spec_of(LossInfo(loss), output)
        assert head == PredictionSpec(kind)
        assert head.is_classifier == (kind != PLAIN)


def test_labels_that_fit_have_a_shape():
    for loss, label, output in (
        ("sparse_categorical_crossentropy", (), THREE),
        ("sparse_categorical_crossentropy", (7,), STEPS),
        ("categorical_crossentropy", (3,), THREE),
        ("binary_crossentropy", (1,), ONE),
        ("binary_crossentropy", (), FLAT),
        ("mse", (3,), THREE),
        ("mse", (84,), TensorInfo("float32", (None, 4, 7, 3))),
        ("sparse_categorical_crossentropy", (28,), TensorInfo("float32", (None, 4, 7, 3))),
        ("mse", None, UNKNOWN),
        ("mse", (None,), TensorInfo("float32", (None, None))),
    ):
        spec = ColumnSpec("y", "y", "label", "float32", 1 if label is None else len(label))
        assert label_constraint(spec, LossInfo(loss), "out", output).shape == label
    classes = ColumnSpec("y", "y", "label", "int64", 1)  # of each step
    with pytest.raises(ShapeError, match="for class indices use sparse_categorical_crossentropy"):
        label_constraint(classes, LossInfo("categorical_crossentropy"), "out", STEPS)


def test_one_probability_becomes_two_classes():
    found = classify(np.array([[0.2], [0.9]], np.float32), PredictionSpec(BINARY), threshold=0.5)
    np.testing.assert_allclose(found["probability"], [[0.8, 0.2], [0.1, 0.9]], rtol=1e-6)
    margins = np.log([0.25, 9.0])  # of p / (1 - p)
    np.testing.assert_allclose(found["raw"], np.stack([-margins, margins], axis=1), rtol=1e-5)
    assert found["prediction"].tolist() == [0, 1]
    found = classify(np.array([0.0, 0.5, 1.0]), PredictionSpec(BINARY), 0.5)
    assert np.isfinite(found["raw"]).all()
    assert found["prediction"].tolist() == [0, 0, 1]


def test_threshold_is_of_the_probability_also_with_a_logit():
    logits = np.log(np.array([0.6, 0.8]) / np.array([0.4, 0.2]))
    found = classify(logits, PredictionSpec(BINARY, from_logits=True), threshold=0.7)
    np.testing.assert_allclose(found["probability"][:, 1], [0.6, 0.8])
    np.testing.assert_allclose(found["raw"], np.stack([-logits, logits], axis=1))
    assert found["prediction"].tolist() == [0, 1]


def test_most_probable_of_several_classes_is_predicted_whatever_the_threshold():
    outputs = np.array([[0.2, 0.5, 0.3], [0.4, 0.3, 0.3]])
    found = classify(outputs, PredictionSpec(MULTICLASS), threshold=0.9)
    assert found["prediction"].tolist() == [1, 0]
    assert found["probability"].tolist() == found["raw"].tolist() == outputs.tolist()


def test_other_values_are_never_given_as_probabilities():
    several, one = np.array([[9.4, -2.8, 0.1], [0.5, 0.2, 0.3]]), np.array([[-0.4], [1.7]])
    for kind, values in ((MULTICLASS, several), (BINARY, one)):
        with pytest.raises(ModelError, match="but its loss expects probabilities"):
            classify(values, PredictionSpec(kind), 0.5)
        found = classify(values, PredictionSpec(kind, from_logits=True), 0.5)
        np.testing.assert_allclose(found["probability"].sum(axis=1), 1)
