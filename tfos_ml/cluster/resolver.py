"""A ``tf.distribute`` cluster resolver for a cluster of Spark tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


class SparkClusterResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """Tells ``tf.distribute`` strategies where the nodes are and which of them this is.

    Parameters
    ----------
    cluster_spec : mapping of str to sequence of str, or to mapping of int to str
        ``host:port`` of the training nodes by job name; by index where a job has gaps.
    task_type : str
        Job name of this node.
    task_id : int
        Index of this node in its job.
    rpc_layer : str, default "grpc"
        Protocol in front of addresses.

    Examples
    --------
    >>> resolver = SparkClusterResolver({"worker": ["a:1", "b:2"]}, "worker", 1)  # doctest: +SKIP
    >>> resolver.master()                                                         # doctest: +SKIP
    'grpc://b:2'
    """

    def __init__(
        self,
        cluster_spec: Mapping[str, Sequence[str] | Mapping[int, str]],
        task_type: str,
        task_id: int,
        rpc_layer: str = "grpc",
    ):
        self._spec = tf.train.ClusterSpec(
            {job: dict(tasks) if isinstance(tasks, Mapping) else list(tasks) for job, tasks in cluster_spec.items()}
        )
        self.task_type = task_type
        self.task_id = task_id
        self.rpc_layer = rpc_layer

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The training cluster."""
        return self._spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Address of a node (default: this one) with its protocol, ``"grpc://host:port"``."""
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        return f"{rpc_layer or self.rpc_layer}://{self._spec.task_address(job, index)}"

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Number of accelerators of a node by type, as this one has them: ``{"GPU": 2}``, or empty.

        The GPUs that Spark assigned to this task, which are all that TensorFlow sees, or those it finds.
        """
        gpus = len(tf.config.list_physical_devices("GPU"))
        return {"GPU": gpus} if gpus else {}

    @property
    def environment(self) -> str:
        """Always empty: Spark is none of the environments that TensorFlow treats specially."""
        return ""
