from types import SimpleNamespace

import keras
import numpy as np

from tfos_ml.keras.step.epoch_end import LayerState
from tfos_ml.keras.step.metrics import MetricSums, is_exact
from tfos_ml.keras.step.reduction_plan import PassReductions


def exact(metric, inexact=None):
    return is_exact(metric, PassReductions(inexact=inexact))


def test_states_of_a_metric_add_up():
    """All classes of Keras are in ``test_zoo.py``."""
    whole, first, second, together = (keras.metrics.AUC() for _ in range(4))
    random = np.random.default_rng(1)
    labels, predictions, weights = random.integers(0, 2, 40), random.random(40), random.uniform(0.5, 2, 40)
    for metric, rows in [(whole, slice(40)), (first, slice(13)), (second, slice(13, 40)), (together, slice(1))]:
        metric.update_state(labels[rows], predictions[rows], sample_weight=weights[rows])
    for one, other, both in zip(first.variables, second.variables, together.variables, strict=True):
        both.assign(np.asarray(one) + np.asarray(other))
    assert exact(whole)
    np.testing.assert_allclose(np.asarray(together.result()), np.asarray(whole.result()), rtol=1e-5)


def test_a_users_metric_is_exact_if_it_is_a_mean_and_what_was_tried_decides():
    class Largest(keras.metrics.Metric):
        pass

    class OwnRecall(keras.metrics.Recall):
        pass

    assert not exact(Largest())
    assert exact(OwnRecall())
    assert exact(keras.metrics.MeanMetricWrapper(lambda y, p: y - p, name="difference"))
    assert not exact(keras.metrics.Mean(name="rmse"), inexact=("rmse",))
    assert exact(keras.metrics.PearsonCorrelation(name="correlation"), inexact=("rmse",))


def test_a_metric_that_adds_up_keeps_its_value_beside_one_whose_name_ends_its_own():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    metrics = [keras.metrics.PearsonCorrelation(name="own"), keras.metrics.MeanSquaredError("my_own")]
    model.compile("sgd", "mse", metrics=metrics)
    model.fit(np.ones((4, 2)), np.zeros((4, 1)), verbose=0)
    two = SimpleNamespace(size=2, all_sum=lambda arrays: [2 * np.asarray(array) for array in arrays])
    assert set(MetricSums(model, two, PassReductions(inexact=("own",))).all_sum_states(0.5)) == {"own"}


def test_of_layers_only_what_a_worker_has_changed_is_sent_and_averaged():
    sent = []
    two = SimpleNamespace(size=2, all_max=np.asarray, all_sum=lambda arrays: [sent.extend(arrays), arrays][1])
    layers = [keras.layers.Dense(3, trainable=False), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.layers.Input((2,)), *layers])
    state = LayerState(model, two)
    layers[1].moving_mean.assign([2.0, 4.0, 6.0])
    state.all_mean(0.5)
    assert [array.tolist() for array in sent] == [[1.0, 2.0, 3.0]]
    assert np.asarray(layers[1].moving_mean).tolist() == [1.0, 2.0, 3.0]
