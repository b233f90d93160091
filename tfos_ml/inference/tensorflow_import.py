"""Imports TensorFlow without collecting garbage, and hides the start-up lines that it prints at any log level."""

from __future__ import annotations

import contextlib
import gc
import glob
import importlib.abc
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

SearchPath = Sequence[str] | None
PRELOADS = "TFOS_ML_PRELOAD"  # "0": a node does not import TensorFlow before its program does
USES_KERAS = "TFOS_ML_USES_KERAS"  # set in the environment of a node whose program mentions Keras

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


class _Finder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow as Python does, but loads it with :class:`_Quietly`."""

    def find_spec(self, name: str, path: SearchPath, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "tensorflow" else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Quietly(spec.loader)
        return spec


class _Quietly(importlib.abc.Loader):
    """Loads TensorFlow without its start-up lines."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load TensorFlow, and not yet Keras, which takes a third of the time; ``tf.keras`` imports it on first use."""
        modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
        modules.setdefault("keras", None)  # so that TensorFlow does not find it
        try:
            with without_collections(), held_back_stderr():
                self._loader.exec_module(module)
                _find_devices()
        finally:
            if modules["keras"] is None:
                del modules["keras"]


_FINDER = _Finder()


def import_tensorflow() -> None:
    """Import TensorFlow quietly."""
    if "tensorflow" in sys.modules:
        return
    sys.meta_path.insert(0, _FINDER)
    try:
        import tensorflow  # noqa: F401
    finally:
        sys.meta_path.remove(_FINDER)


def import_tensorflow_later() -> None:
    """Make any later import of TensorFlow like :func:`import_tensorflow`; only for processes that tfos_ml starts."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def limit_threads(threads: int) -> None:
    """Limit the threads of one TensorFlow operation; has no effect once the TensorFlow runtime is initialized."""
    import_tensorflow()
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(threads)
