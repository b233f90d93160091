"""Where each metric of ``keras.metrics`` stands, as a class and as a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from zoo import branches
from zoo.places import Exact, Group, NotTrained, Place, exact, present

LOSSES = {
    "number": "mse",
    "half": "mse",
    "chance": "binary_crossentropy",
    "classes": "categorical_crossentropy",
    "index": "sparse_categorical_crossentropy",
    "several": "mse",
}


def with_options(**options: Any) -> Callable[[Any], Any]:
    return lambda metric: metric(**options)


def mean_of(metric: Any) -> Any:
    """A mean of values that a function computes of each row."""
    import keras

    return metric(fn=keras.losses.log_cosh)


EXACT: dict[str, Exact] = {  # `of` is the output whose metric it is
    **exact("LogCoshError MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError", of="number"),
    **exact("MeanSquaredLogarithmicError Poisson RootMeanSquaredError", of="number"),
    "R2Score": Exact(of="number", tolerance=1e-4, reason="a difference of sums of squares in 32 bits"),
    **exact("huber log_cosh mean_absolute_error mean_absolute_percentage_error mean_squared_error", of="number"),
    **exact("mean_squared_logarithmic_error poisson", of="number"),
    "Accuracy": Exact(of="half"),
    **exact("AUC BinaryAccuracy BinaryCrossentropy FalseNegatives FalsePositives Hinge Precision Recall", of="chance"),
    **exact("SquaredHinge TrueNegatives TruePositives", of="chance"),
    **exact("binary_accuracy binary_crossentropy binary_focal_crossentropy hinge squared_hinge", of="chance"),
    "PrecisionAtRecall": Exact(with_options(recall=0.5), "chance"),
    "RecallAtPrecision": Exact(with_options(precision=0.5), "chance"),
    "SensitivityAtSpecificity": Exact(with_options(specificity=0.5), "chance"),
    "SpecificityAtSensitivity": Exact(with_options(sensitivity=0.5), "chance"),
    "BinaryIoU": Exact(with_options(target_class_ids=[0, 1], threshold=0.4), "chance"),
    **exact("CategoricalAccuracy CategoricalCrossentropy CategoricalHinge KLDivergence", of="classes"),
    **exact("categorical_accuracy categorical_crossentropy categorical_focal_crossentropy", of="classes"),
    **exact("categorical_hinge kl_divergence", of="classes"),
    "TopKCategoricalAccuracy": Exact(with_options(k=2), "classes"),
    "top_k_categorical_accuracy": Exact(of="classes"),
    "F1Score": Exact(with_options(average="macro"), "classes"),
    "FBetaScore": Exact(with_options(average="weighted", beta=2.0), "classes"),
    "OneHotIoU": Exact(with_options(num_classes=3, target_class_ids=[0, 2]), "classes"),
    "OneHotMeanIoU": Exact(with_options(num_classes=3), "classes"),
    **exact("SparseCategoricalAccuracy SparseCategoricalCrossentropy", of="index"),
    **exact("sparse_categorical_accuracy sparse_categorical_crossentropy", of="index"),
    "SparseTopKCategoricalAccuracy": Exact(with_options(k=2), "index"),
    "sparse_top_k_categorical_accuracy": Exact(of="index"),
    "IoU": Exact(with_options(num_classes=3, target_class_ids=[0, 2], sparse_y_pred=False), "index"),
    "MeanIoU": Exact(with_options(num_classes=3, sparse_y_pred=False), "index"),
    **exact("CosineSimilarity ConcordanceCorrelation PearsonCorrelation", of="several"),
    **exact("concordance_correlation pearson_correlation", of="several"),
    "MeanMetricWrapper": Exact(mean_of, "number"),
}
OTHERS: dict[str, Place] = {
    "Metric": NotTrained("base class"),
    "Mean": NotTrained("of values that a train_step of one's own computes"),
    "Sum": NotTrained("of values that a train_step of one's own computes"),
}
PLACES: dict[str, Place] = {**EXACT, **OTHERS}


def made(name: str, place: Any) -> Any:
    """A metric as it is passed to ``compile``; a class has its own name."""
    import keras

    metric = getattr(keras.metrics, name)
    if not isinstance(metric, type):
        return metric
    result = place.use(metric) if place.use else metric()
    result.name = name
    return result


def groups() -> list[Group]:
    """One model with an output for each kind of label."""
    return [group("all", present(EXACT, "metrics"))]


def group(name: str, parts: dict[str, Any]) -> Group:
    """A model with some metrics."""
    kinds = {kind: kind for kind in LOSSES if any(place.of == kind for place in parts.values())}
    return Group(
        f"metrics-{name}",
        parts,
        functools.partial(branches.data, "numbers", kinds),
        functools.partial(model, parts, list(kinds)),
    )


def model(parts: dict[str, Any], kinds: list[str]) -> Any:
    def branch(kind: str, x: Any) -> Any:
        import keras

        return branches.head(keras.layers.Dense(4, "tanh")(x), kind)

    metrics = {kind: [made(name, place) for name, place in parts.items() if place.of == kind] for kind in kinds}
    made_branches = {kind: functools.partial(branch, kind) for kind in kinds}
    return branches.compiled(branches.model("numbers", made_branches), {kind: LOSSES[kind] for kind in kinds}, metrics)
