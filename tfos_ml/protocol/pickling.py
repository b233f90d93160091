"""Functions on their way to another process or a file, with their source lines."""

from __future__ import annotations

import functools
import io
import linecache
import types
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import cloudpickle

from tfos_ml.errors import TrainFnPickleError

PROGRAM_FILE = "program.pkl"
Sources = dict[str, list[str]]
Reducer = Callable[[Any], Any]

REDUCERS: list[Reducer] = []
"""What packages above this one know of pickling; each returns what ``__reduce__`` would, or ``NotImplemented``."""


def dumps(value: Any) -> bytes:
    """Pickle a value by cloudpickle, with the names of the files that its functions are from.

    AutoGraph and tracebacks find lines by them; cloudpickle drops them since 3.1.3.
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _reduce_code(code: types.CodeType) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    make, arguments, *_ = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _make_code, (make, arguments, code.co_filename)


def _make_code(make: Callable[..., types.CodeType], arguments: tuple[Any, ...], filename: str) -> types.CodeType:
    return make(*arguments).replace(co_filename=filename)


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        for reduce in REDUCERS:
            reduced = reduce(value)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(value)

    dispatch_table: ClassVar[Any] = ChainMap({types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)


def pack_program(what: str, function: Any, value: Any, others: Mapping[str, Any]) -> bytes:
    """Pickle a value that holds a function, with the source lines of that.

    Raises ``TrainFnPickleError``, which names what cannot be pickled: `function` is called `what`, and `others`, by
    name, are what else is in it.
    """
    pickled = pickle_function(what, function, value, others)
    program: bytes = dumps((_collect_sources(function), pickled))
    return program


def pickle_function(what: str, function: Any, value: Any, others: Mapping[str, Any]) -> bytes:
    """Pickle a value that holds a function; parameters and errors as of :func:`pack_program`."""
    try:
        pickled: bytes = dumps(value)
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
    _install_sources(source_lines)
    return cloudpickle.loads(pickled)


def pickle_value(value: Any) -> bytes:
    """What a function returned, pickled; raises ``TrainFnPickleError``."""
    try:
        pickled: bytes = dumps(value)
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
            dumps(value)
        except Exception:
            return f"{name} (a {type(value).__module__}.{type(value).__qualname__})"
    return f"something in {function!r}"


def _collect_sources(function: Any) -> Sources:
    """Source lines, by file name, of a function and of those that cloudpickle sends with it.

    TensorFlow's AutoGraph reads the source of a function to convert it, and tracebacks show it; a notebook's functions
    have no file on the nodes.
    """
    sources: Sources = {}
    _collect(function, sources, set())
    return sources


def _collect(value: Any, sources: Sources, seen: set[int]) -> None:
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            _collect(part, sources, seen)
    code = getattr(value, "__code__", None)
    if code is None or id(code) in seen:
        return
    seen.add(id(code))
    lines = linecache.getlines(code.co_filename, value.__globals__)
    if lines:
        sources[code.co_filename] = lines
    for name in _names(code):
        used = value.__globals__.get(name)
        if getattr(used, "__module__", None) == value.__module__:  # others are imported on the nodes
            _collect(used, sources, seen)


def _names(code: types.CodeType) -> set[str]:
    """Global names used by a function and by the functions inside it."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _install_sources(sources: Sources) -> None:
    """Make source lines known to ``linecache``, and so to ``inspect`` and ``traceback``."""
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
