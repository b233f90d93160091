"""Checks that a fork of the fork server would be like a fresh process."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from tfos_ml.common.timeouts import ALLOCATOR_SECONDS


class ImportedState:
    """The search path, files and threads of the server after its imports, which a fork would inherit."""

    def __init__(self) -> None:
        self._path = _search_order(sys.path)
        self._modified = _modification_times()
        self._threads = _threads()

    def imported_more(self) -> None:
        """Note the files of modules that have been imported since."""
        self._modified = {**_modification_times(), **self._modified}

    def refusal_reason(self, search_path: Sequence[str]) -> str | None:
        """Why a fork with this search path would differ from a fresh process; None if it would not."""
        if self._has_new_threads():
            return "the server has unknown threads"
        if _has_runtime():
            return "the server has a TensorFlow runtime"
        if _modification_times() != self._modified:
            return "packages have been changed since the server imported them"
        path = _search_order(search_path)
        if path != self._path:
            for name in _top_modules():
                if _places(name, path) != _places(name, self._path):
                    return f"module {name!r} is found elsewhere"
        return None

    def _has_new_threads(self) -> bool:
        deadline = time.monotonic() + ALLOCATOR_SECONDS
        while _threads() - self._threads:
            if time.monotonic() > deadline:
                return True
            time.sleep(0.02)
        return False


def _threads() -> Counter[str]:
    """Names of the threads, without that of pyarrow's memory allocator, which restarts it after a fork."""
    names: Counter[str] = Counter()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            names[Path("/proc/self/task", task, "comm").read_text()] += 1
    return Counter({name: number for name, number in names.items() if not name.startswith("jemalloc")})


def _has_runtime() -> bool:
    """Whether TensorFlow 2.21 has devices and threads; if another version renames this, no process is forked."""
    context = sys.modules.get("tensorflow.python.eager.context")
    return context is not None and bool(context.context()._initialized)


def _top_modules() -> list[str]:
    return [name for name in sys.modules if "." not in name and name != "__main__"]


def _search_order(path: Sequence[str]) -> list[str]:
    """A search path without repeated entries."""
    return list(dict.fromkeys(path))


def _places(name: str, path: Sequence[str]) -> object:
    """Where a search path has a module: its file, or the directories of a namespace."""
    spec = PathFinder.find_spec(name, path)
    return spec and (spec.origin or list(spec.submodule_search_locations or ()))


def _modification_times() -> dict[str, int]:
    """When the files of the imported packages were last changed."""
    times = {}
    for name in _top_modules():
        file = getattr(sys.modules[name], "__file__", None)
        with contextlib.suppress(OSError):
            if file:
                times[file] = os.stat(file).st_mtime_ns
    return times
