"""Every public class of Keras, and what several workers do with it; ``unit/test_zoo.py`` shows that it is true.

A module for each namespace has a table ``PLACES``, from the names of classes to :class:`zoo.places.Exact`, ``Told``,
``Refused`` or ``NotTrained``. A class that a new Keras brings is in no table, and a test fails until it is placed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zoo import applications, callbacks, layers, losses, metrics, optimizers, parts
from zoo.places import Group, Place

NAMESPACES: dict[str, Mapping[str, Place]] = {
    "layers": layers.PLACES,
    "losses": losses.PLACES,
    "metrics": metrics.PLACES,
    "optimizers": optimizers.PLACES,
    "optimizers.schedules": optimizers.SCHEDULE_PLACES,
    "callbacks": callbacks.PLACES,
    **parts.PLACES,
    "applications": applications.PLACES,
}


def groups() -> dict[str, Group]:
    """All small models of what is exact, by name."""
    found = [*layers.groups(), *losses.groups(), *metrics.groups(), *optimizers.groups()]
    found += [*callbacks.groups(), *parts.groups(), *applications.groups()]
    return {group.name: group for group in found}


def others() -> dict[str, Group]:
    """A small model for each class that several workers tell of, or refuse, by name."""
    found = [*layers.others(), *parts.others()]
    return {group.name: group for group in found}


def case(name: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What ``keras_worker.py`` trains: the functions that make data and model of a group."""
    group = {**groups(), **others()}[name]
    return group.data, group.model
