"""Where a class of Keras stands: what several workers do with it, beside plain Keras."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Exact:
    """Any number of workers ends like plain Keras.

    Attributes
    ----------
    use : callable, or None
        Makes a part of a small model that uses the class; None where the rule of its namespace does.
    of : str
        What the part reads, or is compared with; the namespace knows what that means.
    tolerance : float
        The largest difference of weights and logs.
    reason : str
        Why this is more than ``TOLERANCE``; empty if it is not.
    """

    use: Callable[..., Any] | None = None
    of: str = ""
    tolerance: float = TOLERANCE
    reason: str = ""


@dataclass(frozen=True)
class Told:
    """Not the same for any number of workers, by its nature; `notice` is in the warning before the first step."""

    reason: str
    notice: str
    use: Callable[..., Any] | None = None
    of: str = ""


@dataclass(frozen=True)
class Refused:
    """Not the same by its nature; several workers raise an error with `message`."""

    reason: str
    message: str
    use: Callable[..., Any] | None = None
    of: str = ""


@dataclass(frozen=True)
class NotTrained:
    """A base class, a container, or another thing that no model of TensorFlow is trained with."""

    reason: str


Place = Exact | Told | Refused | NotTrained


@dataclass(frozen=True)
class Group:
    """Classes that one small model uses; ``parts`` are their places in it, by name.

    ``data`` makes the rows, and ``model`` the compiled model, as a case of ``keras_worker.py``.
    """

    name: str
    parts: dict[str, Any]
    data: Callable[[], dict[str, Any]]
    model: Callable[[], Any]


def exact(names: str, **options: Any) -> dict[str, Exact]:
    """Places of classes that the rule of their namespace makes."""
    return {name: Exact(**options) for name in names.split()}


def public(namespace: str) -> dict[str, Any]:
    """The public classes of a namespace of Keras, each once, by the name that it has itself.

    Functions count where models are compiled or built with them.
    """
    module = importlib.import_module(f"keras.{namespace}")
    found: dict[int, str] = {}
    for name, value in vars(module).items():
        is_counted = inspect.isclass(value) or (namespace in _FUNCTIONS and inspect.isfunction(value))
        if name.startswith("_") or name in _TOOLS or not is_counted:
            continue
        if id(value) not in found or name == value.__name__:
            found[id(value)] = name
    return {name: getattr(module, name) for name in sorted(found.values())}


def present(places: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The places of what this version of Keras has; names with an underscore are further uses of a class."""
    known = public(namespace)
    return {name: place for name, place in places.items() if name in known or name.split("_")[0] in known}


_TOOLS = {"deserialize", "get", "serialize"}
_FUNCTIONS = {"activations", "applications", "losses", "metrics"}
