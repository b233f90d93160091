"""The direction of a metric by its name, beside what Keras knows of its metrics."""

import inspect

import keras
import pytest

from tfos_ml.tuning.directions import direction_of

GIVEN = {"num_classes": 2, "target_class_ids": [0]} | dict.fromkeys(["recall", "precision", "sensitivity"], 0.5)
GIVEN |= {"specificity": 0.5}


def metrics_of_keras():
    for name, known in vars(keras.metrics).items():
        if inspect.isclass(known) and issubclass(known, keras.metrics.Metric) and name != "MeanMetricWrapper":
            wanted = [p for p, v in inspect.signature(known).parameters.items() if v.default is v.empty]
            metric = known(**{parameter: GIVEN[parameter] for parameter in wanted if parameter in GIVEN})
            if getattr(metric, "_direction", None):
                yield pytest.param(metric, id=name)


@pytest.mark.parametrize("metric", metrics_of_keras())
def test_it_is_that_of_keras(metric):
    expected = {"up": "maximize", "down": "minimize"}[metric._direction]
    assert direction_of(f"val_{metric.name}") == expected
    assert direction_of(f"out_{metric.name}_1") == expected


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("val_loss", "minimize"), ("head_loss", "minimize"), ("val_acc", "maximize"), ("val_ours", None), ("rows", None)],
)
def test_of_other_names(metric, expected):
    assert direction_of(metric) == expected
