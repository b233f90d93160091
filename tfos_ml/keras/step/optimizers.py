"""Intercepts what the optimizers of Keras do, wherever a program keeps them.

A program may keep its optimizers in an attribute of the model, a dict, a layer or a module, and may replace them while
it trains. So they are not looked for: the method ``apply``, which every update calls, is replaced in the classes of
optimizers while a step runs under our plan, and restored afterwards.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from tfos_ml.keras import privates

Update = Callable[..., Any]


@contextlib.contextmanager
def intercepted(update: Callable[[Update, Any, Sequence[Any], Sequence[Any]], Any]) -> Iterator[list[Any]]:
    """Call a function in the place of each update by an optimizer of Keras; yields the optimizers that were called.

    `update` gets Keras's own ``apply`` of the optimizer, the optimizer, the gradients, and the variables. An optimizer
    that calls another one, as ``LossScaleOptimizer`` does, counts once: with the gradients that the program has given.
    """
    optimizers: list[Any] = []
    depth = 0

    def replacing(original: Update) -> Update:
        @functools.wraps(original)
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None, **options: Any) -> Any:
            nonlocal depth
            if all(optimizer is not known for known in optimizers):
                optimizers.append(optimizer)
            variables = list(trainable_variables or privates.optimizer_variables(optimizer))
            if depth or not variables:
                return original(optimizer, grads, trainable_variables, **options)
            depth += 1
            try:
                return update(functools.partial(original, optimizer, **options), optimizer, list(grads), variables)
            finally:
                depth -= 1

        return apply

    originals = [(owner, vars(owner)["apply"]) for owner in _classes_with_apply()]
    for owner, original in originals:
        owner.apply = replacing(original)
    try:
        yield optimizers
    finally:
        for owner, original in originals:
            owner.apply = original


def _classes_with_apply() -> list[Any]:
    """The classes of optimizers that define ``apply``: Keras's own and those of the program."""
    base = next(owner for owner in keras.optimizers.Optimizer.__mro__ if "apply" in vars(owner))
    found: list[Any] = []
    left: list[Any] = [base]
    while left:
        owner = left.pop()
        left.extend(owner.__subclasses__())
        if "apply" in vars(owner) and owner not in found:
            found.append(owner)
    return found
