"""The Spark executor that this Python worker belongs to, and the sockets of the servers that its processes share.

Processes share a server only if they would start alike: the name of its socket depends on the executor, and on what a
process reads when it starts, which is its Python, environment variables and the configuration of Keras.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tfos_ml.common.pids import has_ended, start_mark

_EXECUTOR = "ExecutorBackend"  # ends the main class of executors: CoarseGrained-, KubernetesExecutorBackend
# Programs may read these variables when they start or are imported: processes share a server only if they agree.
_READ_AT_START = (
    *("ABSL_", "ARROW_", "CUDA_", "DNNL_", "GLIBC_", "GOMP_", "GRPC_", "HIP_", "HOME", "JAX_", "KERAS_", "KMP_"),
    *("LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NCCL_", "NO_COLOR", "NPY_", "NUMEXPR_", "NVIDIA_", "OMP_", "ONEDNN_"),
    *("OPENBLAS_", "PROTOCOL_BUFFERS_", "PYTHON", "ROCM_", "TERM", "TFDS_", "TF_", "TPU_", "TZ", "USER", "XLA_"),
)
_READ_LATER = ("PYTHONPATH", "TF_CONFIG", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS")
# scikit-learn sets these when TensorFlow imports it: maybe in the driver, not in executors.
_DEFAULTS = {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"}
_KERAS_DEFAULTS = {
    "floatx": "float32", "epsilon": 1e-07, "backend": "tensorflow", "image_data_format": "channels_last",
    "nnx_enabled": False,
}  # fmt: skip
_PREFIX = "tfos_ml-"
# Spark sets these for its workers, TensorFlow when it is imported, and the last is without effect without GPUs.
_NOT_READ = ("PYTHON_DAEMON_", "PYTHON_UDF_", "PYTHON_WORKER_", "TPU_ML_PLATFORM", "CUDA_VISIBLE_DEVICES")


def executor() -> int:
    """The JVM that this Python worker belongs to, or else the process that has started it."""
    for parent in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            if parent.name() == "java":
                return parent.pid
    return os.getppid()


def executor_cores(pid: int) -> int | None:
    """Cores that Spark has given an executor, as its command line says; None if it is none (in local mode)."""
    with contextlib.suppress(psutil.Error, ValueError):
        command = psutil.Process(pid).cmdline()
        if any(_EXECUTOR in word for word in command):  # other programs may have such an argument, too
            return int(command[command.index("--cores") + 1])
    return None


def socket_path(kind: str, owner: int, key: object) -> Path:
    """Path of the socket that is shared by processes with the same key and owner, given by its pid."""
    digest = hashlib.sha256(json.dumps([key, sys.executable], sort_keys=True).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"{_PREFIX}{kind}-{owner}-{start_mark(owner)}-{digest}", "socket")


def sweep(kind: str) -> None:
    """Delete the sockets of killed servers whose owner is gone."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{kind}-*-*-*"):
        owner, mark = directory.name.removeprefix(f"{_PREFIX}{kind}-").split("-")[:2]
        with contextlib.suppress(OSError):
            if owner.isdecimal() and has_ended(int(owner), mark):
                (directory / "socket").unlink(missing_ok=True)
                directory.rmdir()


def read_at_start(environment: Mapping[str, str]) -> list[object]:
    """The variables and files that a process with this environment may read when it starts."""
    configuration = {**_KERAS_DEFAULTS, **_keras_configuration(environment)}
    backend = str(configuration.pop("backend"))
    return [{"KERAS_BACKEND": backend, **read_at_start_only(environment)}, configuration]


def read_at_start_only(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables in which processes that share a server must agree."""
    read = {name: value for name, value in variables.items() if _is_read_at_start(name)}
    return {name: value for name, value in read.items() if _DEFAULTS.get(name) != value}


def _is_read_at_start(name: str) -> bool:
    return name.startswith(_READ_AT_START) and not name.startswith(_NOT_READ) and name not in _READ_LATER


def _keras_configuration(environment: Mapping[str, str]) -> dict[str, Any]:
    """The configuration file that Keras reads on import; if there is none, Keras writes one with its defaults."""
    home = environment.get("KERAS_HOME") or Path(environment.get("HOME", "~"), ".keras").expanduser()
    try:
        configuration = json.loads(Path(home, "keras.json").read_text())
    except (OSError, ValueError):
        return {}
    return configuration if isinstance(configuration, dict) else {}
