"""The values that Params accept: a test, a text for messages, a type annotation, and a conversion."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfos_ml.common.redact import redact
from tfos_ml.errors import ParamError
from tfos_ml.stages.input_mode import InputMode


@dataclass(frozen=True)
class Constraint:
    """The values that a Param accepts."""

    expected: str  # text that follows "must be" in messages
    accepts: Callable[[Any], bool]
    annotation: str  # the type of its values, as source text
    convert: Callable[[Any], Any]  # from an accepted value to the stored one

    def check(self, name: str, value: Any) -> Any:
        """The value to store; raises ``ParamError`` if `value` is not accepted."""
        if self.accepts(value):
            return self.convert(value)
        printable = Environment(value) if self is ENVIRONMENT and isinstance(value, Mapping) else value
        type_name = type(value).__name__
        raise ParamError(f"{name} must be {self.expected}. Received: {redact(repr(printable))} (of type {type_name})")


class Environment(dict[str, str]):
    """Variables whose values are not shown: they may be secrets, and MLflow logs Params as ``str`` shows them."""

    def __repr__(self) -> str:
        kinds = {name: "..." if isinstance(value, str) else type(value).__name__ for name, value in self.items()}
        return "{" + ", ".join(f"{name!r}: {kind}" for name, kind in kinds.items()) + "}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_text(k) and _is_text(v) for k, v in value.items()) and bool(value)


def _is_environment(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_text(k) and isinstance(v, str) for k, v in value.items())


def _is_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(map(_is_text, value))


def _is_class_weight(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(_is_integer(k) or (isinstance(k, str) and k.isdecimal()) for k in value)
        and all(_is_number(w) and 0 <= w < math.inf for w in value.values())
    )


def _class_weight(value: Mapping[Any, Any]) -> dict[int, float]:
    return {int(k): float(w) for k, w in value.items()}  # keys that were saved as JSON are strings


def integer(least: int) -> Constraint:
    """Integers of at least `least`."""
    return Constraint(f"an integer of at least {least}", lambda v: _is_integer(v) and v >= least, "int", int)


def choice(*choices: str) -> Constraint:
    """One of some strings."""
    return Constraint(f"one of {choices}", lambda v: v in choices, "str", str)


def number(expected: str, accepts: Callable[[Any], bool] = lambda v: True) -> Constraint:
    """Numbers for which a test is true."""
    return Constraint(expected, lambda v: _is_number(v) and accepts(v), "float", float)


def names(expected: str) -> Constraint:
    """Lists of strings."""
    return Constraint(expected, _is_names, "Sequence[str]", list)


TEXT = Constraint("a non-empty string", _is_text, "str", str)
COLUMN_OR_EMPTY = Constraint("a string, empty for no such column", lambda v: isinstance(v, str), "str", str)
FLAG = Constraint("True or False", lambda v: isinstance(v, bool), "bool", bool)
ANY_INTEGER = Constraint("an integer", _is_integer, "int", int)
SECONDS = number("a number of seconds above 0", lambda v: v > 0)
VERBOSITY = Constraint("0, 1 or 2", lambda v: _is_integer(v) and 0 <= v <= 2, "int", int)
INPUT_MODE = choice(InputMode.SPARK, InputMode.TENSORFLOW)
MAPPING = Constraint("a non-empty dict of non-empty strings", _is_mapping, "Mapping[str, str]", dict)
ARGUMENTS = Constraint(
    "a dict with strings for keys",
    lambda v: isinstance(v, Mapping) and all(map(_is_text, v)),
    "Mapping[str, Any]",
    dict,
)
ENVIRONMENT = Constraint("a dict of strings", _is_environment, "Mapping[str, str]", Environment)
CLASS_WEIGHT = Constraint(
    "a non-empty dict of class number to weight of at least 0", _is_class_weight, "Mapping[int, float]", _class_weight
)
