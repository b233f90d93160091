from types import SimpleNamespace

import numpy as np
import pytest

METRICS = {
    "AUC": {},
    "Accuracy": {},
    "BinaryAccuracy": {},
    "BinaryCrossentropy": {},
    "BinaryIoU": {"target_class_ids": [0, 1]},
    "CategoricalAccuracy": {},
    "CategoricalCrossentropy": {},
    "CategoricalHinge": {},
    "CosineSimilarity": {},
    "F1Score": {},
    "FBetaScore": {"average": "macro"},
    "FalseNegatives": {},
    "FalsePositives": {},
    "Hinge": {},
    "IoU": {"num_classes": 2, "target_class_ids": [0, 1]},
    "KLDivergence": {},
    "LogCoshError": {},
    "MeanAbsoluteError": {},
    "MeanAbsolutePercentageError": {},
    "MeanIoU": {"num_classes": 2},
    "MeanSquaredError": {},
    "MeanSquaredLogarithmicError": {},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": 3},
    "Poisson": {},
    "Precision": {},
    "PrecisionAtRecall": {"recall": 0.5},
    "R2Score": {},
    "Recall": {},
    "RecallAtPrecision": {"precision": 0.5},
    "RootMeanSquaredError": {},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SparseCategoricalAccuracy": {},
    "SparseCategoricalCrossentropy": {},
    "SparseTopKCategoricalAccuracy": {"k": 2},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "SquaredHinge": {},
    "TopKCategoricalAccuracy": {"k": 2},
    "TrueNegatives": {},
    "TruePositives": {},
}
ONE_HOT = ("OneHot", "Categorical", "TopK", "F1", "FBeta", "KLDivergence")


@pytest.fixture(scope="module")
def keras():
    import keras

    return keras


@pytest.fixture(scope="module")
def is_exact(keras):
    from tfos_ml.keras.step.metrics import is_exact
    from tfos_ml.keras.step.reduction_plan import PassReductions

    return lambda metric, inexact=None: is_exact(metric, PassReductions(inexact=inexact))


@pytest.fixture(scope="module")
def group(keras):
    from tfos_ml.keras.collectives.group import WorkerGroup

    return WorkerGroup(0, 1, 60.0)


def rows_for(name, count):
    """Labels, predictions and weights of a kind that suits a metric."""
    random = np.random.default_rng(1)
    classes, weights = random.integers(0, 3, count), random.uniform(0.5, 2, count).astype("f")
    if name.startswith("Sparse"):
        return classes, random.dirichlet(np.ones(3), count).astype("f"), weights
    if name.startswith(ONE_HOT):
        return np.eye(3, dtype="f")[classes], random.dirichlet(np.ones(3), count).astype("f"), weights
    labels, predictions = random.integers(0, 2, (count, 1)).astype("f"), random.random((count, 1)).astype("f")
    return labels, predictions.round() if name in ("IoU", "MeanIoU", "Accuracy") else predictions, weights


class TestExactness:
    @pytest.mark.parametrize("name", METRICS)
    def test_states_of_kerass_metrics_add_up(self, keras, is_exact, name):
        whole, first, second, together = (getattr(keras.metrics, name)(**METRICS[name]) for _ in range(4))
        labels, predictions, weights = rows_for(name, 40)
        weights = np.ones(40, "i4") if "IoU" in name else weights  # Keras warns of others
        for metric, rows in [(whole, slice(40)), (first, slice(13)), (second, slice(13, 40)), (together, slice(1))]:
            metric.update_state(labels[rows], predictions[rows], sample_weight=weights[rows])
        for one, other, both in zip(first.variables, second.variables, together.variables, strict=True):
            both.assign(np.asarray(one) + np.asarray(other))
        assert is_exact(whole)
        np.testing.assert_allclose(np.asarray(together.result()), np.asarray(whole.result()), rtol=1e-5)

    @pytest.mark.parametrize("name", ["Mean", "Sum"])
    def test_means_and_sums_are_exact(self, keras, is_exact, name):
        assert is_exact(getattr(keras.metrics, name)())

    def test_every_metric_of_keras_is_judged_here(self, keras):
        every = {n for n, v in vars(keras.metrics).items() if isinstance(v, type)}
        judged = {*METRICS, "Mean", "Sum", "PearsonCorrelation", "ConcordanceCorrelation"}
        assert every - judged <= {"Metric", "MeanMetricWrapper"}

    def test_a_users_metric_is_exact_if_it_is_a_mean(self, keras, is_exact):
        class Largest(keras.metrics.Metric):
            pass

        class OwnMean(keras.metrics.Mean):
            pass

        class OwnRecall(keras.metrics.Recall):
            pass

        assert not is_exact(Largest())
        assert is_exact(OwnMean())
        assert is_exact(OwnRecall())
        assert is_exact(keras.metrics.MeanMetricWrapper(lambda y, p: y - p, name="difference"))

    def test_what_was_tried_decides(self, keras, is_exact):
        assert not is_exact(keras.metrics.Mean(name="rmse"), inexact=("rmse",))
        assert is_exact(keras.metrics.PearsonCorrelation(name="correlation"), inexact=("rmse",))


@pytest.fixture
def fitted(keras):
    """A small model, trained for an epoch, with metrics of every origin."""

    def fitted(layers=(), **compiled):
        model = keras.Sequential([keras.layers.Input((2,)), *layers, keras.layers.Dense(1, name="out")])
        model.compile("sgd", "mse", **compiled)
        model.fit(np.ones((4, 2)), np.zeros((4, 1)), verbose=0)
        return model

    return fitted


class TestLeafMetrics:
    def test_are_the_loss_and_all_that_was_compiled(self, keras, fitted):
        from tfos_ml.keras.step.metrics import leaf_metrics

        model = fitted(metrics=["mae", keras.metrics.AUC(name="auc")], weighted_metrics=["mse"])
        assert [m.name for m in leaf_metrics(model)] == ["loss", "mae", "auc", "mse"]


class TestInexact:
    def test_a_metric_that_adds_up_keeps_its_value_beside_one_whose_name_ends_its_own(self, keras, fitted):
        from tfos_ml.keras.step.metrics import MetricSums
        from tfos_ml.keras.step.reduction_plan import PassReductions

        model = fitted(metrics=[keras.metrics.PearsonCorrelation(name="own"), keras.metrics.MeanSquaredError("my_own")])
        two = SimpleNamespace(size=2, all_sum=lambda arrays: [2 * np.asarray(array) for array in arrays])
        assert set(MetricSums(model, two, PassReductions(inexact=("own",))).all_sum_states(0.5)) == {"own"}


class TestAlone:
    def test_metrics_stay_as_they_are_and_are_not_warned_of(self, keras, fitted, group):
        from tfos_ml.keras.step.metrics import MetricSums
        from tfos_ml.keras.step.reduction_plan import PassReductions

        model = fitted(metrics=[keras.metrics.PearsonCorrelation(name="correlation"), "mae"])
        before = [np.asarray(v) for m in model.metrics for v in m.variables]
        assert MetricSums(model, group, PassReductions()).all_sum_states(1.0) == {}
        for one, other in zip(before, [np.asarray(v) for m in model.metrics for v in m.variables], strict=True):
            np.testing.assert_array_equal(one, other)


class TestLayerState:
    def test_only_what_a_worker_has_changed_is_sent_and_averaged(self, keras):
        from tfos_ml.keras.step.epoch_end import LayerState

        sent = []
        two = SimpleNamespace(size=2, all_max=np.asarray, all_sum=lambda arrays: [sent.extend(arrays), arrays][1])
        layers = [keras.layers.Dense(3, trainable=False), keras.layers.BatchNormalization()]
        model = keras.Sequential([keras.layers.Input((2,)), *layers])
        state = LayerState(model, two)
        layers[1].moving_mean.assign([2.0, 4.0, 6.0])
        state.all_mean(0.5)
        assert [array.tolist() for array in sent] == [[1.0, 2.0, 3.0]]
        assert np.asarray(layers[1].moving_mean).tolist() == [1.0, 2.0, 3.0]
