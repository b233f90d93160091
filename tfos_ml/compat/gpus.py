"""Which GPUs a map function gets, as TensorFlowOnSpark deals them out."""

from __future__ import annotations

import os
from typing import Any

from tfos_ml.compat import gpu_info
from tfos_ml.errors import ClusterConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_KUBERNETES = "SPARK_EXECUTOR_POD_IP"


def num_gpus(args: Any) -> int | None:
    """``args.num_gpus`` or ``args["num_gpus"]``, None if there is none."""
    value = args.get("num_gpus") if isinstance(args, dict) else getattr(args, "num_gpus", None)
    return None if value is None else int(value)


def assign_gpus(ctx: Any, wanted: int | None, needs_them: bool = True) -> None:
    """Show TensorFlow the GPUs of this node, and no others; to be called before it looks for them.

    Without `wanted` these are those that Spark has assigned, else one if the host has any. Fewer than wanted are an
    error; none at all only if the node `needs_them`.
    """
    gpus = [gpu for gpu in os.environ.get(VISIBLE, "").split(",") if gpu]
    if not gpus and wanted != 0 and _KUBERNETES not in os.environ and gpu_info.is_gpu_available():
        assigned = gpu_info.get_gpus(wanted or 1, local_index(ctx), format=gpu_info.AS_LIST)
        gpus = list(assigned)
    if wanted is not None:
        if len(gpus) < wanted and (gpus or needs_them):
            raise ClusterConfigError(
                f"num_gpus={wanted}, but this node has {len(gpus)}: {gpus}. Have Spark assign more "
                "(spark.task.resource.gpu.amount), or ask for fewer."
            )
        gpus = gpus[:wanted]
    os.environ[VISIBLE] = ",".join(gpus)


def local_index(ctx: Any) -> int:
    """Index of a node among those on its host; of an instance that is in no cluster, its number."""
    if not ctx.cluster_spec:
        return int(ctx.executor_id)
    mine = ctx.cluster_spec[ctx.job_name][ctx.task_index]
    host = mine.rpartition(":")[0]
    return [a for tasks in ctx.cluster_spec.values() for a in tasks if a.rpartition(":")[0] == host].index(mine)
