"""What cannot be sent to the nodes, by name."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import cloudpickle


def culprit(function: Any, others: Mapping[str, Any]) -> str:
    """Name of what a function captures, or of one of some other values, that cannot be pickled."""
    captured: dict[str, Any] = dict(others)
    if isinstance(function, types.FunctionType):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        captured.update({f"the captured variable '{name}'": cell.cell_contents for name, cell in cells})
        names = [n for n in function.__code__.co_names if n in function.__globals__]
        captured.update({f"the global '{n}'": function.__globals__[n] for n in names})
        captured.update({f"default argument {i}": v for i, v in enumerate(function.__defaults__ or ())})
    for name, value in captured.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"{name} (a {type(value).__module__}.{type(value).__qualname__})"
    return f"something in {function!r}"
