"""A ``tf.distribute`` cluster resolver for a cluster of Spark tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfos_ml.errors import InputTypeError

_FORMS = (
    "cluster_spec must be a tf.train.ClusterSpec, a tf.train.ClusterDef, or a dict of 'host:port' by job: "
    "{'worker': ['a:1', 'b:2']}, or {'worker': {0: 'a:1', 3: 'b:2'}} where a job has gaps"
)


class SparkClusterResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """Cluster spec and task of this node, for ``tf.distribute`` strategies.

    It behaves like ``SimpleClusterResolver`` and ``TFConfigClusterResolver`` of TensorFlow. Where those differ:
    without a task argument it uses its own task, as the second does; with one, it uses that task even in a cluster of
    one node, as the first does.

    Parameters
    ----------
    cluster_spec : tf.train.ClusterSpec, tf.train.ClusterDef, or mapping of str to sequence or mapping
        ``host:port`` of the training nodes by job name, and by index if a job has gaps.
    task_type : str, optional
        Job name of this node. Can be set later, as all attributes can.
    task_id : int, optional
        Index of this node in its job.
    rpc_layer : str or None, default "grpc"
        Protocol in front of addresses; none if empty or None.
    environment : str, default ""
        Name of the environment.
    num_accelerators : mapping of str to int, optional
        Accelerators of a node by type; default those that TensorFlow finds on this one.

    Raises
    ------
    InputTypeError
        If `cluster_spec` is none.

    Examples
    --------
    >>> resolver = SparkClusterResolver({"worker": ["a:1", "b:2"]}, "worker", 1)  # doctest: +SKIP
    >>> resolver.master()                                                         # doctest: +SKIP
    'grpc://b:2'
    """

    __module__ = "tfos_ml"

    def __init__(
        self,
        cluster_spec: tf.train.ClusterSpec | tf.train.ClusterDef | Mapping[str, Sequence[str] | Mapping[int, str]],
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = "grpc",
        *,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
    ):
        self._spec = _cluster_spec(cluster_spec)
        self.task_type = task_type
        self.task_id = task_id
        self.rpc_layer = rpc_layer
        self._environment = environment
        self._accelerators = num_accelerators

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The training cluster."""
        return self._spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Address of a node with its protocol, ``"grpc://host:port"``.

        Parameters
        ----------
        task_type, task_id : optional
            Which node; what is not given is this node's.
        rpc_layer : str, optional
            Protocol instead of the resolver's; ``""`` for none.

        Returns
        -------
        str
            Empty, which to TensorFlow is this process, if neither the resolver nor the call names a task, or if
            this node is alone in the cluster and the call does not name it.

        Raises
        ------
        ValueError
            If the cluster has no such node.
        """
        if (task_type is None or task_id is None) and self._is_alone():
            return ""
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if job is None and index is None:
            return ""
        layer = self.rpc_layer if rpc_layer is None else rpc_layer
        address: str = self._spec.task_address(job, index)
        return f"{layer}://{address}" if layer else address

    def _is_alone(self) -> bool:
        return sum(self._spec.num_tasks(job) for job in self._spec.jobs) <= 1

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Number of accelerators of a node by type, as this one has them: ``{"GPU": 2}``, or empty.

        Those passed to the resolver; else the GPUs that Spark assigned to this task, which are all that
        TensorFlow sees, or those it finds. TensorFlow is not started for it, so it can still be configured.
        """
        if self._accelerators is not None:
            return dict(self._accelerators)
        visible = tf.config.get_visible_devices("GPU")
        gpus = sum(len(tf.config.get_logical_device_configuration(gpu) or [gpu]) for gpu in visible)
        return {"GPU": gpus} if gpus else {}

    @property
    def environment(self) -> str:
        """As given; empty by default."""
        return self._environment


def _cluster_spec(cluster: Any) -> tf.train.ClusterSpec:
    if isinstance(cluster, tf.train.ClusterSpec | tf.train.ClusterDef):
        return tf.train.ClusterSpec(cluster)
    if not isinstance(cluster, Mapping) or not all(isinstance(job, str) for job in cluster):
        raise InputTypeError(f"{_FORMS}. Received: {cluster!r}")
    return tf.train.ClusterSpec({job: _tasks(job, tasks) for job, tasks in cluster.items()})


def _tasks(job: str, tasks: Any) -> dict[int, str] | list[str]:
    addresses_of_tasks: dict[int, str] | list[str] | None = None
    if isinstance(tasks, Mapping):
        addresses_of_tasks = dict(tasks)
    elif isinstance(tasks, Sequence) and not isinstance(tasks, str | bytes):
        addresses_of_tasks = list(tasks)
    addresses = addresses_of_tasks.values() if isinstance(addresses_of_tasks, dict) else addresses_of_tasks or []
    if addresses_of_tasks is None or not all(isinstance(address, str) for address in addresses):
        raise InputTypeError(f"{_FORMS}. Received: job {job!r} is {tasks!r}")
    return addresses_of_tasks
