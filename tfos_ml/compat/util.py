"""Small helpers that programs of TensorFlowOnSpark call."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from typing import Literal, NoReturn

from tfos_ml.compat import gpu_info
from tfos_ml.compat.gpus import VISIBLE
from tfos_ml.errors import RemovedError

_HADOOP, _DONE = "HADOOP_PREFIX", "TFOS_CLASSPATH_UPDATED"
_ROUTE = ("192.0.2.1", 80)  # an address of documentation: nothing is sent there
_RANK = "Nodes know their rank: ctx.executor_id."


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: Sequence[str] = ()) -> None:
    """Prepare the environment of this process for TensorFlow on its own: ``CLASSPATH`` and ``CUDA_VISIBLE_DEVICES``.

    Takes `num_gpus` GPUs if this host has any; `worker_index` says which of the hosts `nodes` of all processes this is,
    without them, which of the processes on this host.
    """
    if _HADOOP in os.environ and _DONE not in os.environ:
        hadoop = os.path.join(os.environ[_HADOOP], "bin", "hadoop")
        expanded = subprocess.run([hadoop, "classpath", "--glob"], capture_output=True, text=True, check=True).stdout
        os.environ["CLASSPATH"] = os.pathsep.join(filter(None, [os.environ.get("CLASSPATH"), expanded.strip()]))
        os.environ[_DONE] = "1"
    gpus: str | list[str] = ""
    if num_gpus > 0 and gpu_info.is_gpu_available():
        gpus = gpu_info.get_gpus(num_gpus, _index_on_host(worker_index, nodes))
    os.environ[VISIBLE] = str(gpus)


def _index_on_host(worker_index: int, nodes: Sequence[str]) -> int:
    """Index of a process among those before it on its host."""
    if worker_index < 0 or not nodes:
        return worker_index
    hosts = [node.rpartition(":")[0] or node for node in nodes]
    return hosts[:worker_index].count(hosts[worker_index])


def get_ip_address() -> str:
    """The address of this host from which its default route leaves, else that of its name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ROUTE)  # of a datagram socket: sends nothing
        except OSError:
            return socket.gethostbyname(socket.getfqdn())
        address: str = probe.getsockname()[0]
        return address


def find_in_path(path: str, file: str) -> str | Literal[False]:
    """Where a file is in the directories of a search path, or False."""
    places = [os.path.join(directory, file) for directory in path.split(os.pathsep)]
    return next((place for place in places if os.path.isfile(place)), False)


def write_executor_id(num: int) -> NoReturn:
    """Gone: no file maps a task to its node. Raises ``RemovedError``."""
    raise RemovedError(f"util.write_executor_id() is gone. {_RANK}")


def read_executor_id() -> NoReturn:
    """Gone: no file maps a task to its node. Raises ``RemovedError``."""
    raise RemovedError(f"util.read_executor_id() is gone. {_RANK}")
