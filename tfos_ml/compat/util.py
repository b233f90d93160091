"""Small helpers that programs of TensorFlowOnSpark call."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

from tfos_ml.compat import gpu_info
from tfos_ml.errors import RemovedError
from tfos_ml.protocol.addresses import address_towards

_HADOOP, _DONE = "HADOOP_PREFIX", "TFOS_CLASSPATH_UPDATED"
_ANYWHERE = "udp://192.0.2.1:80"  # an address for documentation; nothing is sent there


def removed(name: str, instead: str) -> Callable[..., NoReturn]:
    """A function that raises ``RemovedError``, which says what to use instead; for tfos_ml itself."""

    def gone(*args: Any, **kwargs: Any) -> NoReturn:
        raise RemovedError(f"{name}() is gone. {instead}")

    gone.__doc__ = f"Gone: raises ``RemovedError``. {instead}"
    return gone


write_executor_id = removed("util.write_executor_id", "Use ctx.executor_id.")
read_executor_id = removed("util.read_executor_id", "Use ctx.executor_id.")


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: Sequence[str] = ()) -> None:
    """Prepare the environment of this process for TensorFlow on its own: ``CLASSPATH`` and ``CUDA_VISIBLE_DEVICES``.

    Takes `num_gpus` GPUs if this host has any. `worker_index` is the number of this process among those on the hosts
    `nodes`, or without `nodes` among those on this host.
    """
    if _HADOOP in os.environ and _DONE not in os.environ:
        hadoop = os.path.join(os.environ[_HADOOP], "bin", "hadoop")
        expanded = subprocess.run([hadoop, "classpath", "--glob"], capture_output=True, text=True, check=True).stdout
        os.environ["CLASSPATH"] = os.pathsep.join(filter(None, [os.environ.get("CLASSPATH"), expanded.strip()]))
        os.environ[_DONE] = "1"
    gpus: str | list[str] = ""
    if num_gpus > 0 and gpu_info.is_gpu_available():
        on_host = gpu_info.index_on_host(worker_index, nodes) if worker_index >= 0 and nodes else worker_index
        gpus = gpu_info.get_gpus(num_gpus, on_host)
    os.environ[gpu_info.VISIBLE] = str(gpus)


def get_ip_address() -> str:
    """The address from which this host's default route leaves, or else that of its name."""
    try:
        return address_towards(_ANYWHERE)
    except OSError:
        return socket.gethostbyname(socket.getfqdn())


def find_in_path(path: str, file: str) -> str | Literal[False]:
    """Where a file is in the directories of a search path, or False."""
    places = [os.path.join(directory, file) for directory in path.split(os.pathsep)]
    return next((place for place in places if os.path.isfile(place)), False)
