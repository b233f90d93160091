import numpy as np
import pytest

from tfos_ml.data.casting import TensorInfo
from tfos_ml.inference.prediction import (
    BINARY,
    MULTICLASS,
    PLAIN,
    LossInfo,
    PredictionSpec,
    classify,
    label_problem,
    prediction_spec_of,
)

THREE, ONE, FLAT = (TensorInfo("float32", shape) for shape in [(None, 3), (None, 1), (None,)])
UNKNOWN = TensorInfo("float32", None)
STEPS = TensorInfo("float32", (None, 7, 3))


class TestHead:
    @pytest.mark.parametrize(
        ("loss", "output", "kind"),
        [
            ("SparseCategoricalCrossentropy", THREE, MULTICLASS),
            ("sparse_categorical_crossentropy", THREE, MULTICLASS),
            ("CategoricalCrossentropy", THREE, MULTICLASS),
            ("CategoricalFocalCrossentropy", THREE, MULTICLASS),
            ("CategoricalGeneralizedCrossEntropy", THREE, MULTICLASS),
            ("categorical_crossentropy", UNKNOWN, MULTICLASS),
            ("categorical_crossentropy", None, MULTICLASS),
            ("sparse_categorical_crossentropy", STEPS, PLAIN),
            ("BinaryCrossentropy", ONE, BINARY),
            ("binary_crossentropy", FLAT, BINARY),
            ("BinaryFocalCrossentropy", ONE, BINARY),
            ("binary_crossentropy", None, BINARY),
            ("binary_crossentropy", THREE, PLAIN),
            ("binary_crossentropy", STEPS, PLAIN),
            ("binary_crossentropy", TensorInfo("float32", (None, None)), PLAIN),
            ("MeanSquaredError", ONE, PLAIN),
            ("mse", None, PLAIN),
        ],
    )
    def test_follows_loss_and_output(self, loss, output, kind):
        prediction_spec = prediction_spec_of(LossInfo(loss), output)
        assert prediction_spec == PredictionSpec(kind)
        assert prediction_spec.is_classifier == (kind != PLAIN)

    @pytest.mark.parametrize("loss", ["binary_crossentropy", "sparse_categorical_crossentropy"])
    def test_keeps_whether_the_model_returns_logits(self, loss):
        assert prediction_spec_of(LossInfo(loss, from_logits=True), None).from_logits

    def test_without_a_loss_is_plain(self):
        assert prediction_spec_of(None, THREE) == PredictionSpec()

    def test_of_a_users_loss_of_the_same_name_is_plain(self):
        assert prediction_spec_of(LossInfo("binary_crossentropy", from_keras=False), ONE) == PredictionSpec()


class TestLabels:
    @pytest.mark.parametrize(
        ("loss", "label", "output"),
        [
            ("sparse_categorical_crossentropy", (), THREE),
            ("sparse_categorical_crossentropy", (1,), THREE),
            ("sparse_categorical_crossentropy", (7,), STEPS),
            ("sparse_categorical_crossentropy", (None,), STEPS),
            ("sparse_categorical_crossentropy", (7, 1), STEPS),
            ("categorical_crossentropy", (3,), THREE),
            ("categorical_crossentropy", (None,), THREE),
            ("binary_crossentropy", (), ONE),
            ("binary_crossentropy", (1,), ONE),
            ("binary_crossentropy", (), FLAT),
            ("binary_crossentropy", (1,), FLAT),
            ("mse", (3,), THREE),
            ("mse", (7, 3), STEPS),
            ("mse", (5,), UNKNOWN),
            ("mse", (5,), TensorInfo("float32", (None, None))),
        ],
    )
    def test_that_fit_are_taken(self, loss, label, output):
        assert label_problem(LossInfo(loss), label, output) is None

    @pytest.mark.parametrize(
        ("loss", "label", "output", "wanted"),
        [
            ("sparse_categorical_crossentropy", (3,), THREE, "one class index per prediction: rows of shape ()"),
            ("sparse_categorical_crossentropy", (), STEPS, "one class index per prediction: rows of shape (7)"),
            ("categorical_crossentropy", (), THREE, "rows of shape (3) (for class indices use sparse_"),
            ("CategoricalCrossentropy", (4,), THREE, "rows of shape (3) (for class indices use sparse_"),
            ("mse", (), THREE, "labels like the output: rows of shape (3)"),
            ("mse", (2,), ONE, "labels like the output: rows of shape (1)"),
            ("mse", (3,), STEPS, "labels like the output: rows of shape (7, 3)"),
            ("mse", (2, 2), TensorInfo("float32", (None, None)), "rows of shape (?)"),
        ],
    )
    def test_that_do_not_fit_are_told_what_is_wanted(self, loss, label, output, wanted):
        problem = label_problem(LossInfo(loss), label, output)
        assert problem.startswith(f"{loss} needs ")
        assert wanted in problem

    @pytest.mark.parametrize(
        ("loss", "label", "output"),
        [
            ("CategoricalGeneralizedCrossEntropy", (), THREE),
            ("Circle", (), THREE),
            ("ctc", (4,), STEPS),
        ],
    )
    def test_of_losses_with_labels_unlike_the_output_are_taken(self, loss, label, output):
        assert label_problem(LossInfo(loss), label, output) is None

    def test_of_a_users_loss_are_the_users_matter(self):
        assert label_problem(LossInfo("mse", from_keras=False), (5,), THREE) is None


class TestClassify:
    def test_one_probability_becomes_two_classes(self):
        found = classify(np.array([[0.2], [0.9]], np.float32), PredictionSpec(BINARY), threshold=0.5)
        np.testing.assert_allclose(found["probability"], [[0.8, 0.2], [0.1, 0.9]], rtol=1e-6)
        np.testing.assert_array_equal(found["raw"], found["probability"])
        assert found["prediction"].tolist() == [0, 1]

    @pytest.mark.parametrize(("threshold", "prediction"), [(0.0, [0, 1, 1]), (0.5, [0, 0, 1]), (1.0, [0, 0, 0])])
    def test_class_1_has_to_be_more_probable_than_the_threshold(self, threshold, prediction):
        found = classify(np.array([0.0, 0.5, 1.0]), PredictionSpec(BINARY), threshold)
        assert found["prediction"].tolist() == prediction

    def test_threshold_is_of_the_probability_also_with_a_logit(self):
        logits = np.log(np.array([0.6, 0.8]) / np.array([0.4, 0.2]))
        found = classify(logits, PredictionSpec(BINARY, from_logits=True), threshold=0.7)
        np.testing.assert_allclose(found["probability"][:, 1], [0.6, 0.8])
        np.testing.assert_allclose(found["raw"], np.stack([-logits, logits], axis=1))
        assert found["prediction"].tolist() == [0, 1]

    @pytest.mark.filterwarnings("error")
    def test_extreme_logits_overflow_in_no_class(self):
        one = classify(np.array([-1e30, -800.0, 0.0, 800.0, 1e30]), PredictionSpec(BINARY, from_logits=True), 0.5)
        assert one["probability"].tolist() == [[1, 0], [1, 0], [0.5, 0.5], [0, 1], [0, 1]]
        assert one["prediction"].tolist() == [0, 0, 0, 1, 1]
        many = classify(
            np.array([[-1e30, 0, 1e30], [900.0, 900, -900]]), PredictionSpec(MULTICLASS, from_logits=True), 0.5
        )
        assert many["probability"].tolist() == [[0, 0, 1], [0.5, 0.5, 0]]

    def test_most_probable_of_several_classes_is_predicted_whatever_the_threshold(self):
        outputs = np.array([[0.2, 0.5, 0.3], [0.4, 0.3, 0.3]])
        found = classify(outputs, PredictionSpec(MULTICLASS), threshold=0.9)
        assert found["prediction"].tolist() == [1, 0]
        assert found["probability"].tolist() == found["raw"].tolist() == outputs.tolist()

    def test_logits_of_several_classes_stay_the_raw_prediction(self):
        logits = np.log(np.array([[1.0, 2, 5], [6, 1, 1]]))
        found = classify(logits, PredictionSpec(MULTICLASS, from_logits=True), 0.5)
        np.testing.assert_allclose(found["probability"], [[0.125, 0.25, 0.625], [0.75, 0.125, 0.125]])
        np.testing.assert_array_equal(found["raw"], logits)

    @pytest.mark.parametrize(("kind", "shape"), [(BINARY, (0, 1)), (BINARY, (0,)), (MULTICLASS, (0, 3))])
    @pytest.mark.parametrize("from_logits", [True, False])
    def test_no_rows_give_no_rows(self, kind, shape, from_logits):
        found = classify(np.zeros(shape, np.float32), PredictionSpec(kind, from_logits), 0.5)
        classes = 2 if kind == BINARY else 3
        assert {name: values.shape for name, values in found.items()} == {
            "raw": (0, classes),
            "probability": (0, classes),
            "prediction": (0,),
        }
        assert {values.dtype.name for values in found.values()} == {"float64"}
