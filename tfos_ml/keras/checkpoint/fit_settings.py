"""What a checkpoint's training was told to do, to be compared with what a fit in the same ``modelDir`` is told."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tfos_ml.common.redact import SECRET_NAME, redact
from tfos_ml.keras import privates

_SHOWN = 60  # characters of a value
_PLACE_NAME = re.compile("dir|path|file|root|url", re.IGNORECASE)  # where a callback writes changes no training


def fit_settings(model: Any, class_weight: Mapping[int, float], callbacks: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a fit, its compiled model and its callbacks by name, as text; only a checksum of what is long."""
    settings = {"loss": _text(model.loss), "classWeight": _text(class_weight)}
    for name, value in _config(model.optimizer).items():
        settings[f"optimizer's {name}"] = _text(value)
    numbers: Counter[str] = Counter()
    for layer in privates.all_layers(model):
        kind = type(layer).__name__
        for name, value in _config(layer).items():
            is_short = isinstance(value, bool | int | float | str) or name.endswith("regularizer")
            if is_short and name not in ("seed", "trainable"):  # Keras makes seeds up
                settings[f"{name} of {kind} {numbers[kind]}"] = _text(value)
        numbers[kind] += 1
    for key, callback in callbacks.items():
        for name, value in vars(callback).items():
            is_plain = isinstance(value, bool | int | float | str)
            if is_plain and not SECRET_NAME.search(name) and not _PLACE_NAME.search(name):
                settings[f"{name} of {key}"] = _text(value)
    return settings


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The first settings that differ, such as "loss (was mse, now mae)"; nothing if none do."""
    changed = [name for name in now if name in before and before[name] != now[name]]
    shown = [f"{name} (was {before[name]}, now {now[name]})" for name in changed[:5]]
    return ", ".join([*shown, *([f"and {len(changed) - 5} more"] if len(changed) > 5 else [])])


def _config(part: Any) -> dict[str, Any]:
    try:
        return {name: value for name, value in part.get_config().items() if name != "name"}  # Keras numbers them
    except Exception:  # of a class of the user's
        return {}


def _text(value: Any) -> str:
    """A value, the same in all processes: functions by their names."""
    if isinstance(value, dict):
        text = str({name: _text(part) for name, part in value.items() if name != "registered_name"})
    elif isinstance(value, list | tuple):
        text = str([_text(part) for part in value])
    elif callable(value):
        config = _config(value)
        text = f"{type(value).__name__} {_text(config)}" if config else getattr(value, "__qualname__", "")
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    text = redact(text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... {zlib.crc32(text.encode()):08x}"
