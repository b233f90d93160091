"""TensorFlow imported without the lines it prints before any log level can stop them, and faster."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

SearchPath = Sequence[str] | None
PRELOADS = "TFOS_ML_PRELOAD"  # "0": a node imports TensorFlow only when its program, which names no Keras, does
USES_KERAS = "TFOS_ML_USES_KERAS"  # in the environment of a node whose program names Keras

# They import matplotlib and scikit-learn, which takes as long as the rest of Keras.
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

    def find_spec(self, name: str, path: SearchPath, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _SELDOM_USED else None
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


class _NotNow(importlib.abc.Loader):
    """Loads nothing."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        raise ImportError(f"{spec.name} is imported later")

    def exec_module(self, module: ModuleType) -> None:
        """Never reached."""


class _WithoutKeras(importlib.abc.MetaPathFinder):
    """Finds Keras, but does not load it."""

    def find_spec(self, name: str, path: SearchPath, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "keras" else None
        if spec is not None:
            spec.loader = _NotNow()
        return spec


@contextlib.contextmanager
def _keras_later() -> Iterator[None]:
    """TensorFlow loads Keras 3 for registrations that only Keras 2 made; ``tf.keras`` would load it on first use."""
    finder = _WithoutKeras()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_tensorflow() -> None:
    """Import TensorFlow: quietly, and without Keras until it is used."""
    if "tensorflow" in sys.modules:
        return
    with held_back_stderr(), _keras_later() if "keras" not in sys.modules else contextlib.nullcontext():
        import tensorflow  # noqa: F401


class _Quietly(importlib.abc.Loader):
    """Loads TensorFlow as :func:`import_tensorflow` does."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load it."""
        with held_back_stderr(), _keras_later() if "keras" not in sys.modules else contextlib.nullcontext():
            self._loader.exec_module(module)


class _QuietFinder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow as a module that loads quietly."""

    def find_spec(self, name: str, path: SearchPath, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "tensorflow" else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Quietly(spec.loader)
        return spec


def import_tensorflow_later() -> None:
    """Have TensorFlow, whenever it is imported, load as :func:`import_tensorflow` does; for processes of ours."""
    sys.meta_path.insert(0, _QuietFinder())


def import_keras_lightly() -> None:
    """Have Keras, whenever it is imported, load its seldom used parts only when they are; for processes of ours."""
    sys.meta_path.insert(0, _LazyFinder())
