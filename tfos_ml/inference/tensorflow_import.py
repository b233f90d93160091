"""Imports TensorFlow faster, and without the lines that it prints whatever the log level."""

from __future__ import annotations

import contextlib
import gc
import glob
import importlib.abc
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
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


# Start-up lines that TensorFlow 2.18 to 2.21 write whatever the log level.
_STARTUP_LINE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|.*\b(?:port|util)\.cc:\d+\] oneDNN custom operations are on"
    rb"|.*\bcudart_stub\.cc:\d+\] Could not find cuda drivers on your machine"
    rb"|.*\bcpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized"
    rb"|To enable the following instructions: .*rebuild TensorFlow"
    rb"|.*\bcuda_(?:fft|dnn|blas)\.cc:\d+\] Unable to register cu"
    rb"|.*\bcomputation_placer\.cc:\d+\] computation placer already registered"
)
# Where there is no GPU; where there is one, it says why that cannot be used.
_NO_GPU_LINE = re.compile(rb".*\bcuda_\w+\.cc:\d+\] failed call to cuInit")
_GPU_DEVICES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvhost-*", "/dev/dxg")


@contextlib.contextmanager
def held_back_stderr() -> Iterator[None]:
    """Hold back what is written to the process's stderr, and replay all but TensorFlow's known start-up lines.

    After an error all is replayed.
    """
    sys.stderr.flush()
    real = os.dup(2)
    held = os.memfd_create("stderr")
    os.dup2(held, 2)
    failed = True
    try:
        yield
        failed = False
    finally:
        os.dup2(real, 2)
        os.lseek(held, 0, os.SEEK_SET)
        with open(held, "rb") as file, open(real, "wb", buffering=0) as stderr:
            stderr.write(b"".join(line for line in file if failed or not _is_startup_line(line)))


def _is_startup_line(line: bytes) -> bool:
    return bool(_STARTUP_LINE.match(line)) or (bool(_NO_GPU_LINE.match(line)) and not has_gpu_device())


def has_gpu_device() -> bool:
    """Whether the kernel shows a device of NVIDIA's here."""
    return any(glob.glob(pattern) for pattern in _GPU_DEVICES)


def _find_devices() -> None:
    """Have TensorFlow look for GPUs now, where there are none: it complains on its first look, whenever that is."""
    if not has_gpu_device():
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds some modules as Python does, and has another loader load them.

    Parameters
    ----------
    names : set of str
        The modules.
    loader : callable
        Makes the other loader of Python's.
    """

    def __init__(self, names: set[str], loader: Callable[[importlib.abc.Loader], importlib.abc.Loader]):
        self._names = names
        self._loader = loader

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Finder) and self._names == other._names

    __hash__ = None  # type: ignore[assignment]

    def find_spec(self, name: str, path: SearchPath, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = self._loader(spec.loader)
        return spec


class _NotNow(importlib.abc.Loader):
    """Loads nothing."""

    def __init__(self, loader: importlib.abc.Loader):
        pass

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        raise ImportError(f"{spec.name} is imported later")

    def exec_module(self, module: ModuleType) -> None:
        """Never reached."""


@contextlib.contextmanager
def _keras_later() -> Iterator[None]:
    """TensorFlow loads Keras 3 for registrations that only Keras 2 made; ``tf.keras`` would load it on first use."""
    finder = _Finder({"keras"}, _NotNow)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Disable garbage collection, which takes a quarter of the time of TensorFlow's import and finds nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def import_tensorflow() -> None:
    """Import TensorFlow as :class:`_Quietly` loads it."""
    if "tensorflow" in sys.modules:
        return
    finder = _Finder({"tensorflow"}, _Quietly)
    sys.meta_path.insert(0, finder)
    try:
        import tensorflow  # noqa: F401
    finally:
        sys.meta_path.remove(finder)


def limit_threads(threads: int) -> None:
    """Have an operation of TensorFlow's use so many threads, if nothing has used its runtime yet."""
    import_tensorflow()
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(threads)


class _Wrapper(importlib.abc.Loader):
    """Another loader, whose ``exec_module`` a subclass replaces."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)


class _Quietly(_Wrapper):
    """Loads TensorFlow without its start-up lines, and without Keras until that is used."""

    def exec_module(self, module: ModuleType) -> None:
        """Load it."""
        keras = _keras_later() if "keras" not in sys.modules else contextlib.nullcontext()
        with without_collections(), held_back_stderr(), keras:
            self._loader.exec_module(module)
            _find_devices()


def import_tensorflow_later() -> None:
    """Have TensorFlow, whenever it is imported, load as :func:`import_tensorflow` does; for processes of ours."""
    _find_first(_Finder({"tensorflow"}, _Quietly))


class _WhenUsed(_Wrapper):
    """Loads a module when a name that it may have is first read."""

    def __init__(self, loader: importlib.abc.Loader):
        super().__init__(loader)
        self._lock = threading.RLock()
        self._has_begun = False

    def exec_module(self, module: ModuleType) -> None:
        """Leave it unloaded."""
        module.__class__ = _Unloaded

    def may_have(self, module: ModuleType, name: str) -> bool:
        """Whether a name stands in the module's source."""
        source = getattr(self._loader, "get_source", lambda module: None)(module.__name__)
        return source is None or name == "__all__" or re.search(rf"\b{re.escape(name)}\b", source) is not None

    def load(self, module: ModuleType) -> None:
        """Load it now, once."""
        with self._lock:
            if self._has_begun:  # by another thread, or by this one, whose import of it asks for a name
                return
            self._has_begun = True
            try:
                self._loader.exec_module(module)
            except BaseException:
                self._has_begun = False
                raise
            module.__class__ = ModuleType


class _Unloaded(ModuleType):
    """A module of :class:`_WhenUsed`.

    ``importlib.util.LazyLoader`` loads on any access; AutoGraph, ``inspect`` and ``pickle`` ask every module for its
    file, or for the name of whatever they look at.
    """

    def __getattr__(self, name: str) -> object:
        loader = self.__loader__
        if isinstance(loader, _WhenUsed) and loader.may_have(self, name):
            loader.load(self)
            if name in self.__dict__ or type(self) is ModuleType:
                return getattr(self, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        loader = self.__loader__
        if isinstance(loader, _WhenUsed):
            loader.load(self)
        return sorted(self.__dict__)


def import_keras_lightly() -> None:
    """Have Keras, whenever it is imported, load its seldom used parts only when they are; for processes of ours."""
    _find_first(_Finder(_SELDOM_USED, _WhenUsed))


def _find_first(finder: _Finder) -> None:
    """Put a finder first, once in a process."""
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)
