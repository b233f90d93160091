"""A ``tf.distribute`` cluster resolver for a cluster of Spark tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf


class SparkClusterResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """Tells ``tf.distribute`` strategies where the nodes are and which of them this is.

    Parameters
    ----------
    cluster_spec : mapping of str to sequence of str
        ``host:port`` of the training nodes by job name.
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
        self, cluster_spec: Mapping[str, Sequence[str]], task_type: str, task_id: int, rpc_layer: str = "grpc"
    ):
        self._spec = tf.train.ClusterSpec({job: list(tasks) for job, tasks in cluster_spec.items()})
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

    @property
    def environment(self) -> str:
        """Always empty: Spark is none of the environments that TensorFlow treats specially."""
        return ""
