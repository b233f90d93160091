"""Where each optimizer of ``keras.optimizers``, and each schedule of learning rates, stands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from zoo import branches
from zoo.places import Exact, Group, NotTrained, Place, exact, present


def scaled(optimizer: Any) -> Any:
    return optimizer(branches.sgd(), initial_scale=8.0, dynamic_growth_steps=3)


def several(optimizer: Any) -> Any:
    import keras

    adam = keras.optimizers.Adam(0.01)
    return optimizer(keras.optimizers.OptimizerMap(branches.sgd(), {"first/.*": adam}))


def momentum(optimizer: Any) -> Any:
    return optimizer(0.02, momentum=0.9, nesterov=True)


OPTIMIZERS: dict[str, Exact] = {
    **exact("Adadelta Adafactor Adagrad Adam Adamax AdamW Ftrl Lamb Lion Muon Nadam RMSprop"),
    "ScheduleFreeAdamW": Exact(reason="if plain Keras builds it before fit; built in fit, it starts anew in each step"),
    "SGD": Exact(momentum),
    "LossScaleOptimizer": Exact(scaled),
    "MultiOptimizer": Exact(several),
    "OptimizerMap": Exact(lambda _: several(_of_keras("MultiOptimizer"))),
}
SCHEDULES: dict[str, Exact] = {
    "CosineDecay": Exact(lambda schedule: schedule(0.02, 8, warmup_target=0.05, warmup_steps=3)),
    "CosineDecayRestarts": Exact(lambda schedule: schedule(0.05, 3)),
    "ExponentialDecay": Exact(lambda schedule: schedule(0.05, 4, 0.7)),
    "InverseTimeDecay": Exact(lambda schedule: schedule(0.05, 4, 0.7)),
    "PiecewiseConstantDecay": Exact(lambda schedule: schedule([2, 5], [0.05, 0.02, 0.01])),
    "PolynomialDecay": Exact(lambda schedule: schedule(0.05, 8)),
}
PLACES: dict[str, Place] = {**OPTIMIZERS, "Optimizer": NotTrained("base class")}
SCHEDULE_PLACES: dict[str, Place] = {**SCHEDULES, "LearningRateSchedule": NotTrained("base class")}


def _of_keras(name: str) -> Any:
    import keras

    return getattr(keras.optimizers, name)


def groups() -> list[Group]:
    """A model for each optimizer, and each schedule."""
    found = [
        _group(f"optimizers-{name}", name, place, functools.partial(_optimizer, name, place))
        for name, place in present(OPTIMIZERS, "optimizers").items()
    ]
    return found + [
        _group(f"schedules-{name}", name, place, functools.partial(_scheduled, name, place))
        for name, place in present(SCHEDULES, "optimizers.schedules").items()
    ]


def _group(group: str, name: str, place: Exact, optimizer: Callable[[], Any]) -> Group:
    data = functools.partial(branches.data, "numbers", {name: "number"})
    return Group(group, {name: place}, data, functools.partial(model, optimizer))


def _optimizer(name: str, place: Exact) -> Any:
    optimizer = _of_keras(name)
    return place.use(optimizer) if place.use else optimizer(0.01)


def _scheduled(name: str, place: Exact) -> Any:
    import keras

    assert place.use is not None
    return keras.optimizers.SGD(place.use(getattr(keras.optimizers.schedules, name)))


def model(optimizer: Callable[[], Any]) -> Any:
    """Two layers with biases."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((branches.WIDTH,), name="x"), layers.Dense(6, "tanh", name="first"), layers.Dense(1)]
    )
    model.compile(optimizer(), "mse", metrics=["mae"])
    if type(model.optimizer).__name__ == "ScheduleFreeAdamW":  # else plain Keras starts its average anew in each step
        model.optimizer.build(model.trainable_variables)
    return model
