"""TensorFlow imported without the lines it prints before any log level can stop them, and faster."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

# They import matplotlib and scikit-learn, a third of the time that TensorFlow's import takes.
_SELDOM_USED = {
    f"{package}.{name}"
    for package in ("keras", "keras.src", "keras._tf_keras.keras")
    for name in ("visualization", "wrappers")
}


@contextlib.contextmanager
def held_back_stderr() -> Iterator[None]:
    """Hold back what is written to the process's stderr, and replay it only on an error."""
    sys.stderr.flush()
    real = os.dup(2)
    held = os.memfd_create("stderr")
    os.dup2(held, 2)
    try:
        yield
    except BaseException:
        os.lseek(held, 0, os.SEEK_SET)
        with open(held, "rb", closefd=False) as file:
            os.write(real, file.read())
        raise
    finally:
        os.dup2(real, 2)
        os.close(real)
        os.close(held)


class _LazyFinder(importlib.abc.MetaPathFinder):
    """Finds seldom used parts of Keras as modules that load when something of them is first used."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _SELDOM_USED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


@contextlib.contextmanager
def _seldom_used_later() -> Iterator[None]:
    finder = _LazyFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_tensorflow() -> None:
    """Import TensorFlow: quietly, and without the parts of Keras that are seldom used until they are."""
    if "tensorflow" in sys.modules:
        return
    with held_back_stderr(), _seldom_used_later():
        import tensorflow  # noqa: F401
