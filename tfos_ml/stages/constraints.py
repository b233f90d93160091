"""What each Param accepts: one table, one message format."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from tfos_ml.common.redact import redact
from tfos_ml.errors import ParamError
from tfos_ml.stages.input_mode import InputMode


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _integer(least: int) -> tuple[str, Callable[[Any], bool]]:
    return f"an integer of at least {least}", lambda v: _is_integer(v) and v >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _seconds(value: Any) -> bool:
    return _is_number(value) and value > 0


def _choice(*choices: str) -> tuple[str, Callable[[Any], bool]]:
    return f"one of {choices}", lambda v: v in choices


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_text(k) and _is_text(v) for k, v in value.items()) and bool(value)


class Environment(dict[str, str]):
    """Variables whose values are not shown: they may be secrets, and MLflow logs Params as ``str`` shows them."""

    def __repr__(self) -> str:
        kinds = {name: "..." if isinstance(value, str) else type(value).__name__ for name, value in self.items()}
        return "{" + ", ".join(f"{name!r}: {kind}" for name, kind in kinds.items()) + "}"


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


_TEXT = ("a non-empty string", _is_text)
_MAPPING = ("a non-empty dict of non-empty strings", _is_mapping)
_BOOLEAN = ("True or False", lambda v: isinstance(v, bool))

CONSTRAINTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "featuresCol": _TEXT,
    "labelCol": _TEXT,
    "predictionCol": _TEXT,
    "weightCol": _TEXT,
    "validationIndicatorCol": _TEXT,
    "inputMapping": _MAPPING,
    "labelMapping": _MAPPING,
    "weightMapping": _MAPPING,
    "outputMapping": _MAPPING,
    "clusterSize": _integer(1),
    "numPS": _integer(0),
    "driverPSNodes": _BOOLEAN,
    "masterNode": _choice("chief", "master"),
    "evalNode": _BOOLEAN,
    "inputMode": _choice(InputMode.SPARK, InputMode.TENSORFLOW),
    "epochs": _integer(1),
    "steps": _integer(1),
    "batchSize": _integer(1),
    "shuffle": _BOOLEAN,
    "seed": ("an integer", _is_integer),
    "modelDir": _TEXT,
    "exportDir": _TEXT,
    "logDir": _TEXT,
    "tensorboard": _BOOLEAN,
    "signatureDefKey": _TEXT,
    "tagSet": _TEXT,
    "reservationTimeout": ("a number of seconds above 0", _seconds),
    "feedTimeout": ("a number of seconds above 0", _seconds),
    "maxRestarts": _integer(0),
    "communication": _choice("auto", "ring", "nccl"),
    "protocol": _TEXT,
    "nodeCpus": _integer(1),
    "nodeGpus": _integer(1),
    "nodeEnv": ("a dict of strings", _is_environment),
    "nullPolicy": _choice("error", "skip", "keep"),
    "nanPolicy": _choice("error", "skip", "keep"),
    "padValue": ("a number", _is_number),
    "binaryOutputs": ("a non-empty list of output names", _is_names),
    "rawPredictionCol": ("a string, empty for no such column", lambda v: isinstance(v, str)),
    "probabilityCol": ("a string, empty for no such column", lambda v: isinstance(v, str)),
    "threshold": ("a number from 0 to 1", lambda v: _is_number(v) and 0 <= v <= 1),
    "modelArgs": ("a dict with strings for keys", lambda v: isinstance(v, Mapping) and all(map(_is_text, v))),
    "validationSplit": ("a number of at least 0 and below 1", lambda v: _is_number(v) and 0 <= v < 1),
    "classWeight": ("a non-empty dict of class number to weight of at least 0", _is_class_weight),
    "adaptLayers": ("a non-empty list of layer names", _is_names),
    "adaptRows": _integer(1),
    "initialModel": _TEXT,
    "verbose": ("0, 1 or 2", lambda v: _is_integer(v) and 0 <= v <= 2),
}
"""What each Param accepts, in words and as a test."""


def check_value(name: str, value: Any) -> Any:
    """Return `value` if Param `name` accepts it.

    Raises
    ------
    ParamError
        Otherwise; says what is accepted and what was received.
    """
    expected, accepts = CONSTRAINTS[name]
    if not accepts(value):
        shown = Environment(value) if accepts is _is_environment and isinstance(value, Mapping) else value
        raise ParamError(f"{name} must be {expected}. Received: {redact(repr(shown))} (of type {type(value).__name__})")
    return value
