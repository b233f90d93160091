"""Calls a map function on a node, with its context, ``TF_CONFIG`` and GPUs as TensorFlowOnSpark has them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfos_ml.compat.gpu_info import assign_gpus, num_gpus
from tfos_ml.compat.TFSparkNode import TFNodeContext

if TYPE_CHECKING:
    from tfos_ml.worker.node_context import NodeContext

MapFun = Callable[[Any, Any], Any]


def run_in_cluster(map_fun: MapFun, args: Any, node: NodeContext) -> None:
    """Run a map function on a node of a cluster."""
    ctx = TFNodeContext.of_node(node)
    _set_tf_config(ctx)
    if ctx.job_name != "ps":
        assign_gpus(ctx, num_gpus(args))
    map_fun(args, ctx)


def run_alone(map_fun: MapFun, args: Any, node: NodeContext) -> None:
    """Run a map function as an instance of ``TFParallel``."""
    ctx = TFNodeContext.of_instance(node)
    os.environ.pop("TF_CONFIG", None)
    wanted = num_gpus(args)
    assign_gpus(ctx, 1 if wanted is None else wanted, needs_them=False)
    map_fun(args, ctx)


def _set_tf_config(ctx: TFNodeContext) -> None:
    """Remove ``TF_CONFIG`` in clusters without a chief or master, unless it is one that the user has set."""
    config = json.loads(os.environ["TF_CONFIG"])
    cluster = config.get("cluster") or {}
    if any(ctx.cluster_spec.get(job) != tasks for job, tasks in cluster.items()):
        return
    if {"chief", "master"} & set(ctx.cluster_spec):
        os.environ["TF_CONFIG"] = json.dumps({**config, "environment": "cloud"})
    else:
        del os.environ["TF_CONFIG"]
