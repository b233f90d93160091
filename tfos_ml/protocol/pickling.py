"""Functions on their way to another process or a file, with their source lines."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import cloudpickle

from tfos_ml.errors import TrainFnPickleError
from tfos_ml.protocol import sources

PROGRAM_FILE = "program.pkl"


def pack_program(what: str, function: Any, value: Any, others: Mapping[str, Any]) -> bytes:
    """Pickle a value that holds a function, with the source lines of that.

    Raises ``TrainFnPickleError``, which names what cannot be pickled: `function` is called `what`, and `others`, by
    name, are what else is in it.
    """
    pickled = pickle_function(what, function, value, others)
    program: bytes = cloudpickle.dumps((sources.collect(function), pickled))
    return program


def pickle_function(what: str, function: Any, value: Any, others: Mapping[str, Any]) -> bytes:
    """Pickle a value that holds a function; parameters and errors as of :func:`pack_program`."""
    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception as error:
        guilty = _culprit(function, others)
        raise TrainFnPickleError(
            f"{what} cannot be sent to the nodes: {guilty} cannot be pickled ({type(error).__name__}: {error}). "
            "Create it inside the function instead."
        ) from error
    return pickled


def unpack_program(program: bytes) -> Any:
    """The value that :func:`pack_program` pickled; runs what its maker put into it."""
    source_lines, pickled = cloudpickle.loads(program)
    sources.install(source_lines)
    return cloudpickle.loads(pickled)


def pickle_value(value: Any) -> bytes:
    """What a function returned, pickled; raises ``TrainFnPickleError``."""
    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise TrainFnPickleError(
            f"the returned {type(value).__module__}.{type(value).__qualname__} cannot be pickled "
            f"({type(error).__name__}: {error}). Return numbers, text, arrays, or lists and dicts of these."
        ) from None
    return pickled


def _culprit(function: Any, others: Mapping[str, Any]) -> str:
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
