"""Which GPUs of this host a node gets: those that Spark has assigned, or else its share of all."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import Any

from tfos_ml.errors import ClusterConfigError, ParamError

AS_STRING = "string"
AS_LIST = "list"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICE = "/dev/nvidia"


def is_gpu_available() -> bool:
    """Whether this process may use a GPU of NVIDIA's."""
    return bool(_gpus())


def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: str = AS_STRING) -> str | list[str]:
    """GPUs of this process, joined by commas or, with ``format=AS_LIST``, as a list.

    They are the first of ``CUDA_VISIBLE_DEVICES``, which has those that Spark has assigned. If that is not set, they
    are GPUs of the host: `worker_index` is the number of the calling process on it, so that each gets others.
    Raises ``ClusterConfigError`` if there are too few.
    """
    if format not in (AS_STRING, AS_LIST):
        raise ParamError(f"format must be {AS_STRING!r} or {AS_LIST!r}. Received: {format!r}")
    gpus = _gpus()
    first = 0 if _assigned() else max(worker_index, 0) * num_gpu
    chosen = gpus[first : first + num_gpu]
    if len(chosen) < num_gpu:
        raise ClusterConfigError(
            f"num_gpus={num_gpu}, but of the GPUs {gpus} {len(chosen)} are left for process {max(worker_index, 0)} of "
            "this host. Ask for fewer, or have Spark assign more (spark.task.resource.gpu.amount)."
        )
    return ",".join(chosen) if format == AS_STRING else chosen


def _assigned() -> list[str]:
    return [gpu for gpu in os.environ.get(VISIBLE, "").split(",") if gpu]


def _gpus() -> list[str]:
    """The GPUs that are assigned, or else all of this host."""
    on_host = [path.removeprefix(_DEVICE) for path in glob.glob(f"{_DEVICE}[0-9]*")]
    return _assigned() or sorted(on_host, key=int)


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
    gpus = _assigned() if wanted is None else []
    if not gpus and wanted != 0 and (is_gpu_available() or (needs_them and wanted)):
        gpus = list(get_gpus(wanted or 1, local_index(ctx), format=AS_LIST))
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
