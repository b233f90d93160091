"""Where each loss of ``keras.losses`` stands, as a class and as a function."""

from __future__ import annotations

import functools
from typing import Any

from zoo import branches
from zoo.places import Exact, Group, NotTrained, Place, exact, present


def normalized(x: Any) -> Any:
    """Rows of unit length, as losses of embeddings expect."""
    import keras

    return keras.layers.UnitNormalization()(keras.layers.Dense(3)(x))


ALONE: dict[str, Exact] = {  # `of` is the kind of output and label
    **exact("Huber LogCosh MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError", of="number"),
    **exact("MeanSquaredLogarithmicError Poisson", of="number"),
    **exact("huber log_cosh mean_absolute_error mean_absolute_percentage_error mean_squared_error", of="number"),
    **exact("mean_squared_logarithmic_error poisson", of="number"),
    **exact("BinaryCrossentropy BinaryFocalCrossentropy Hinge SquaredHinge", of="chance"),
    **exact("binary_crossentropy binary_focal_crossentropy hinge squared_hinge", of="chance"),
    **exact("CategoricalCrossentropy CategoricalFocalCrossentropy CategoricalHinge KLDivergence", of="classes"),
    **exact("categorical_crossentropy categorical_focal_crossentropy categorical_hinge kl_divergence", of="classes"),
    **exact("SparseCategoricalCrossentropy sparse_categorical_crossentropy", of="index"),
    **exact("CosineSimilarity cosine_similarity", of="several"),
    **exact("CTC ctc", of="path"),
    "CategoricalGeneralizedCrossEntropy": Exact(lambda loss: loss(q=0.5), of="index"),
    "MeanSquaredError_summed": Exact(lambda loss: loss(reduction="sum"), of="number"),
}
TOGETHER: dict[str, Exact] = {  # over all rows of a batch
    **exact("Dice Tversky dice tversky", of="pixels"),
    "Circle": Exact(lambda loss: loss(gamma=4), of="index"),
    "circle": Exact(of="index"),
}
OTHERS: dict[str, Place] = {
    "Loss": NotTrained("base class"),
    "categorical_generalized_cross_entropy": NotTrained("needs an argument; the class passes it"),
}
PLACES: dict[str, Place] = {**ALONE, **TOGETHER, **OTHERS}


def made(name: str, place: Exact) -> Any:
    """A loss as it is passed to ``compile``."""
    import keras

    loss = getattr(keras.losses, name.split("_summed")[0])
    if place.use:
        return place.use(loss)
    return loss() if isinstance(loss, type) else loss


def groups() -> list[Group]:
    """A model of losses of each row, and one for each loss of all rows."""
    alone = [_group("alone", present(ALONE, "losses"))]
    return alone + [_group(name, {name: place}) for name, place in present(TOGETHER, "losses").items()]


def _group(name: str, parts: dict[str, Exact]) -> Group:
    kinds = {part: place.of for part, place in parts.items()}
    return Group(
        f"losses-{name}", parts, functools.partial(branches.data, "numbers", kinds), functools.partial(model, parts)
    )


def model(parts: dict[str, Exact]) -> Any:
    """A branch for each loss."""

    def branch(name: str, place: Exact, x: Any) -> Any:
        import keras

        hidden = keras.layers.Dense(4, "tanh")(x)
        return normalized(hidden) if name.lower() == "circle" else branches.head(hidden, place.of)

    made_branches = {name: functools.partial(branch, name, place) for name, place in parts.items()}
    losses = {name: made(name, place) for name, place in parts.items()}
    rate = 0.001 if {"Circle", "circle"} & parts.keys() else 0.05
    return branches.compiled(branches.model("numbers", made_branches), losses, rate=rate)
