"""Source lines of train functions that have no file on the nodes, such as a notebook's.

TensorFlow's AutoGraph reads the source of a function to convert it, and tracebacks show it.
"""

from __future__ import annotations

import functools
import linecache
import types
from typing import Any

Sources = dict[str, list[str]]


def collect(function: Any) -> Sources:
    """Source lines, by file name, of a function and of those that cloudpickle sends with it."""
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


def install(sources: Sources) -> None:
    """Make source lines known to ``linecache``, and so to ``inspect`` and ``traceback``."""
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
