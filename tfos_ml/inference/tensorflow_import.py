"""Imports TensorFlow faster, and hides the start-up lines that it prints at any log level."""

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
PRELOADS = "TFOS_ML_PRELOAD"  # "0": a node does not import TensorFlow before its program does
USES_KERAS = "TFOS_ML_USES_KERAS"  # set in the environment of a node whose program mentions Keras

# These modules import matplotlib and scikit-learn, which takes as long as the rest of Keras.
_RARELY_USED = {
    f"{package}.{name}"
    for package in ("keras", "keras.src", "keras._tf_keras.keras")
    for name in ("visualization", "wrappers")
}


# Start-up lines that TensorFlow 2.18 to 2.21 prints at any log level.
_STARTUP_LINE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|.*\b(?:port|util)\.cc:\d+\] oneDNN custom operations are on"
    rb"|.*\bcudart_stub\.cc:\d+\] Could not find cuda drivers on your machine"
    rb"|.*\bcpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized"
    rb"|To enable the following instructions: .*rebuild TensorFlow"
    rb"|.*\bcuda_(?:fft|dnn|blas)\.cc:\d+\] Unable to register cu"
    rb"|.*\bcomputation_placer\.cc:\d+\] computation placer already registered"
)
# Hidden only on hosts without a GPU; otherwise the line says why the GPU cannot be used.
_NO_GPU_LINE = re.compile(rb".*\bcuda_\w+\.cc:\d+\] failed call to cuInit")
_GPU_DEVICES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvhost-*", "/dev/dxg")


@contextlib.contextmanager
def held_back_stderr() -> Iterator[None]:
    """Hold back the stderr of this process, and then write it without TensorFlow's known start-up lines.

    After an error, everything is written.
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
    """Whether this host has a device file of an NVIDIA GPU."""
    return any(glob.glob(pattern) for pattern in _GPU_DEVICES)


def _find_devices() -> None:
    """Make TensorFlow search for GPUs now, on a host without any, because it prints a line on its first search."""
    if not has_gpu_device():
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds some modules as Python does, but loads them with another loader.

    Parameters
    ----------
    names : set of str
        Names of the modules.
    loader : callable
        Makes the other loader from Python's loader.
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


class _Refused(importlib.abc.Loader):
    """Refuses to load a module."""

    def __init__(self, loader: importlib.abc.Loader):
        pass

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        raise ImportError(f"{spec.name} is imported later")

    def exec_module(self, module: ModuleType) -> None:
        """Never reached."""


@contextlib.contextmanager
def _keras_later() -> Iterator[None]:
    """Keep TensorFlow from importing Keras 3, which it needs only for Keras 2; ``tf.keras`` imports it on first use."""
    finder = _Finder({"keras"}, _Refused)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Disable garbage collection, which takes a quarter of the time of importing TensorFlow and frees nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def import_tensorflow() -> None:
    """Import TensorFlow with the loader :class:`_Quietly`."""
    if "tensorflow" in sys.modules:
        return
    finder = _Finder({"tensorflow"}, _Quietly)
    sys.meta_path.insert(0, finder)
    try:
        import tensorflow  # noqa: F401
    finally:
        sys.meta_path.remove(finder)


def limit_threads(threads: int) -> None:
    """Limit the threads of one TensorFlow operation; has no effect once the TensorFlow runtime is initialized."""
    import_tensorflow()
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(threads)


class _Wrapper(importlib.abc.Loader):
    """Wraps a loader; subclasses replace ``exec_module``."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)


class _Quietly(_Wrapper):
    """Loads TensorFlow without its start-up lines; Keras is loaded on first use."""

    def exec_module(self, module: ModuleType) -> None:
        """Load TensorFlow."""
        keras = _keras_later() if "keras" not in sys.modules else contextlib.nullcontext()
        with without_collections(), held_back_stderr(), keras:
            self._loader.exec_module(module)
            _find_devices()


def import_tensorflow_later() -> None:
    """Make any later import of TensorFlow like :func:`import_tensorflow`; only for processes that tfos_ml starts."""
    _find_first(_Finder({"tensorflow"}, _Quietly))


class _WhenUsed(_Wrapper):
    """Loads a module on the first access to a name that it may have."""

    def __init__(self, loader: importlib.abc.Loader):
        super().__init__(loader)
        self._lock = threading.RLock()
        self._has_begun = False

    def exec_module(self, module: ModuleType) -> None:
        """Do not load the module yet."""
        module.__class__ = _Unloaded

    def may_have(self, module: ModuleType, name: str) -> bool:
        """Whether the source of the module contains a name."""
        source = getattr(self._loader, "get_source", lambda module: None)(module.__name__)
        return source is None or name == "__all__" or re.search(rf"\b{re.escape(name)}\b", source) is not None

    def load(self, module: ModuleType) -> None:
        """Load the module, once."""
        with self._lock:
            if self._has_begun:  # by another thread, or by this thread, while it imports the module
                return
            self._has_begun = True
            try:
                self._loader.exec_module(module)
            except BaseException:
                self._has_begun = False
                raise
            module.__class__ = ModuleType


class _Unloaded(ModuleType):
    """A module of :class:`_WhenUsed` that is not loaded yet.

    ``importlib.util.LazyLoader`` loads a module on any access. But AutoGraph, ``inspect`` and ``pickle`` access the
    file name, or an arbitrary name, of every module.
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
    """Make any later import of Keras load rarely used parts on first use; only for processes that tfos_ml starts."""
    _find_first(_Finder(_RARELY_USED, _WhenUsed))


def _find_first(finder: _Finder) -> None:
    """Insert a finder before all others, once per process."""
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)
