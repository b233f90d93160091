"""Lists that callbacks fill on a node, and that stay as they were on the driver, whose callbacks were copied."""

from __future__ import annotations

import inspect
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from tfos_ml.keras.checkpoint.callback_state import SET_BY_KERAS, names_of_keras
from tfos_ml.keras.privates import is_of_keras

_CONTAINERS = (list, dict, set, deque)


class FilledLists:
    """Looks at the lists and dicts of callbacks, since this object was made: attributes, and names in their functions.

    Those whose names begin with an underscore are the callback's own.
    """

    def __init__(self, callbacks: Iterable[Any]):
        self._callbacks = list(callbacks)
        self._before = self._sizes()

    def names(self) -> list[str]:
        """Those that have grown, such as "LossHistory.losses"."""
        return sorted(name for name, size in self._sizes().items() if size > self._before.get(name, 0))

    def _sizes(self) -> dict[str, int]:
        return {name: _size(value) for callback in self._callbacks for name, value in _containers(callback)}


def _containers(callback: Any) -> Iterator[tuple[str, Any]]:
    kind = type(callback)
    own = [base for base in kind.__mro__ if base is not object and not is_of_keras(base)]
    known = (*SET_BY_KERAS, *names_of_keras(kind))
    attributes: dict[str, Any] = {}
    for part in (*reversed(own), callback):
        attributes |= vars(part)
    for name, value in attributes.items():
        if isinstance(value, types.FunctionType):
            yield from _used_by(value)
        elif own and not name.startswith("_") and name not in known and isinstance(value, _CONTAINERS):
            yield f"{kind.__name__}.{name}", value


def _used_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The lists and dicts of a function's program, by name."""
    try:
        used = inspect.getclosurevars(function)
    except ValueError:  # a name that has no value yet
        return
    for name, value in {**used.globals, **used.nonlocals}.items():
        if not name.startswith("_") and isinstance(value, _CONTAINERS):
            yield name, value


def _size(value: Any) -> int:
    """How many items a container has, with those of the containers in it."""
    items = value.values() if isinstance(value, dict) else value
    return len(value) + sum(len(item) for item in items if isinstance(item, _CONTAINERS))
