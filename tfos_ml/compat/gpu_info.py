"""GPUs of this host that nobody uses, by ``nvidia-smi``, and which of them a node gets.

For hosts whose GPUs Spark does not manage.
"""

from __future__ import annotations

import logging
import os
import random
import re
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from tfos_ml.errors import ClusterConfigError, ParamError

logger = logging.getLogger(__name__)
MAX_RETRIES = 3
AS_STRING = "string"
AS_LIST = "list"
RETRY_SECONDS = 30.0
ANSWER_SECONDS = 60.0
VISIBLE = "CUDA_VISIBLE_DEVICES"
_KUBERNETES = "SPARK_EXECUTOR_POD_IP"
_GPU = re.compile(r"^GPU (\d+):.*\(UUID: ([^)]+)\)", re.MULTILINE)


def is_gpu_available() -> bool:
    """Whether this host has GPUs of NVIDIA's and ``nvidia-smi`` answers."""
    try:
        _nvidia_smi("--list-gpus")
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: str = AS_STRING) -> str | list[str]:
    """The indices of free GPUs of this host, joined by commas or, with ``format=AS_LIST``, as a list.

    `worker_index` is the number of the calling process on this host, so that each gets others; -1 for any free ones.
    Raises ``ClusterConfigError`` if too few are free at each of ``MAX_RETRIES`` looks, with 30 and 60 seconds between.
    """
    if format not in (AS_STRING, AS_LIST):
        raise ParamError(f"format must be {AS_STRING!r} or {AS_LIST!r}. Received: {format!r}")
    free: list[str] = []
    for attempt in range(MAX_RETRIES):
        time.sleep(attempt * RETRY_SECONDS)
        busy = set(_nvidia_smi("--format=csv,noheader,nounits", "--query-compute-apps=gpu_uuid").split())
        free = [index for index, uuid in _GPU.findall(_nvidia_smi("--list-gpus")) if uuid not in busy]
        if len(free) >= num_gpu:
            break
        logger.warning("%d GPUs are free, %d are needed", len(free), num_gpu)
    else:
        raise ClusterConfigError(
            f"{num_gpu} GPUs are needed, but only {len(free)} are free on this host: {free}. Ask for fewer, or have "
            "Spark assign them (spark.task.resource.gpu.amount)."
        )
    chosen = _share(free, num_gpu, worker_index)
    return ",".join(chosen) if format == AS_STRING else chosen


def _share(free: list[str], count: int, worker_index: int) -> list[str]:
    """What one process takes: the GPUs after those of the processes before it, from the start again where they end."""
    if worker_index < 0:
        return random.sample(free, count)
    first = worker_index * count
    if first + count > len(free):
        first = min(first % len(free), len(free) - count)
    return free[first : first + count]


def _nvidia_smi(*arguments: str) -> str:
    return subprocess.run(
        ["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=ANSWER_SECONDS
    ).stdout


# For tfos_ml itself


def num_gpus(args: Any) -> int | None:
    """``args.num_gpus`` or ``args["num_gpus"]``, None if there is none."""
    value = args.get("num_gpus") if isinstance(args, dict) else getattr(args, "num_gpus", None)
    return None if value is None else int(value)


def assign_gpus(ctx: Any, wanted: int | None, needs_them: bool = True) -> None:
    """Show TensorFlow the GPUs of this node, and no others; to be called before TensorFlow looks for them.

    If `wanted` is None, these are the GPUs that Spark has assigned, or else one if the host has any. Too few GPUs are
    an error, but no GPU at all is one only if the node `needs_them`.
    """
    gpus = [gpu for gpu in os.environ.get(VISIBLE, "").split(",") if gpu]
    if not gpus and wanted != 0 and _KUBERNETES not in os.environ and is_gpu_available():
        gpus = list(get_gpus(wanted or 1, local_index(ctx), format=AS_LIST))
    if wanted is not None:
        if len(gpus) < wanted and (gpus or needs_them):
            raise ClusterConfigError(
                f"num_gpus={wanted}, but this node has {len(gpus)}: {gpus}. Have Spark assign more "
                "(spark.task.resource.gpu.amount), or ask for fewer."
            )
        gpus = gpus[:wanted]
    os.environ[VISIBLE] = ",".join(gpus)


def local_index(ctx: Any) -> int:
    """Index of a node among those on its host; an instance of TFParallel has its number."""
    if not ctx.cluster_spec:
        return int(ctx.executor_id)
    nodes = [node for tasks in ctx.cluster_spec.values() for node in tasks]
    return index_on_host(nodes.index(ctx.cluster_spec[ctx.job_name][ctx.task_index]), nodes)


def index_on_host(index: int, nodes: Sequence[str]) -> int:
    """How many of the nodes before one, given by ``host:port`` or host, are on its host."""
    hosts = [node.rpartition(":")[0] or node for node in nodes]
    return hosts[:index].count(hosts[index])
