"""The direction of a metric by its name, beside what Keras knows of its metrics."""

import inspect

import keras

from tfos_ml.tuning.directions import direction_of

GIVEN = {"num_classes": 2, "target_class_ids": [0], "recall": 0.5, "precision": 0.5}
GIVEN |= {"sensitivity": 0.5, "specificity": 0.5}


def test_it_is_that_of_keras():
    for name, known in vars(keras.metrics).items():
        if inspect.isclass(known) and issubclass(known, keras.metrics.Metric) and name != "MeanMetricWrapper":
            wanted = [p for p, v in inspect.signature(known).parameters.items() if v.default is v.empty]
            metric = known(**{parameter: GIVEN[parameter] for parameter in wanted if parameter in GIVEN})
            expected = {"up": "maximize", "down": "minimize"}.get(getattr(metric, "_direction", None))
            if expected:
                assert direction_of(f"val_{metric.name}") == expected, name
                assert direction_of(f"out_{metric.name}_1") == expected, name


def test_of_other_names():
    found = [direction_of(name) for name in ("val_loss", "head_loss", "val_acc", "val_ours", "rows")]
    assert found == ["minimize", "minimize", "maximize", None, None]
