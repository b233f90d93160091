"""Independent instances of a program in parallel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tfos_ml.compat.map_functions import MapFun, run_alone
from tfos_ml.tfcluster.cluster_arguments import check_map_fun
from tfos_ml.tfcluster.tfparallel import TFParallel

if TYPE_CHECKING:
    from pyspark import SparkContext


def run(sc: SparkContext, map_fn: MapFun, tf_args: Any, num_executors: int, use_barrier: bool = True) -> None:
    """Run independent instances of ``map_fn(args, ctx)``, each in a TensorFlow process of its own.

    ``ctx.worker_num`` and ``ctx.executor_id`` are the number of the instance, ``ctx.num_workers`` is how many there
    are. A list for `tf_args` becomes ``sys.argv`` as well; ``num_gpus`` in it is the number of GPUs of each. With
    `use_barrier` all instances start at once, and need a task slot each; otherwise as many run as there are slots.

    An instance that fails ends the others, and its error is raised here.
    """
    check_map_fun(map_fn, "map_fn")
    TFParallel.run(sc, partial(run_alone, map_fn), tf_args, num_executors, use_barrier)
