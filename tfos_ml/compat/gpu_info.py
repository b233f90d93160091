"""GPUs of this host that nobody uses, by ``nvidia-smi``; for hosts whose GPUs Spark does not manage."""

from __future__ import annotations

import logging
import random
import re
import subprocess
import time

from tfos_ml.errors import ClusterConfigError, ParamError

logger = logging.getLogger(__name__)
MAX_RETRIES = 3
AS_STRING = "string"
AS_LIST = "list"
RETRY_SECONDS = 30.0
ANSWER_SECONDS = 60.0
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
    Raises ``ClusterConfigError`` if there are not as many free ones, after ``MAX_RETRIES`` looks, the next after 30 and
    60 seconds.

    Differences: does not wait any more once the last look has failed.
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
        logger.warning("%d GPUs are free, %d are wanted", len(free), num_gpu)
    else:
        raise ClusterConfigError(
            f"{num_gpu} GPUs are wanted, but only {len(free)} are free on this host: {free}. Ask for fewer, or have "
            "Spark assign them (spark.task.resource.gpu.amount)."
        )
    chosen = _share(free, num_gpu, worker_index)
    return ",".join(chosen) if format == AS_STRING else chosen


def _share(free: list[str], count: int, worker_index: int) -> list[str]:
    """What one process takes: the GPUs that follow those of the processes before it, begun anew where they end."""
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
