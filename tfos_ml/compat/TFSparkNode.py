"""``TFNodeContext``: what a map function gets as ``ctx``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfos_ml.compat import TFNode
from tfos_ml.compat.TFManager import TFManager
from tfos_ml.errors import ParamError

if TYPE_CHECKING:
    from tfos_ml.worker.node_context import NodeContext

TRAINING_JOBS = ("chief", "master", "worker")


class TFNodeContext:
    """One node of the cluster, as its map function sees it.

    ``executor_id`` and ``worker_num`` are its rank in the whole cluster, ``task_index`` is that within its job.
    ``num_workers`` counts chief and workers. It also has all attributes of :class:`tfos_ml.NodeContext`:
    ``ctx.report``, ``ctx.is_chief``, ``ctx.barrier``, ``ctx.cluster_resolver()``... Files that the map function makes
    with ``tempfile`` are deleted with its process.
    """

    def __init__(
        self,
        executor_id: int = 0,
        job_name: str = "",
        task_index: int = 0,
        cluster_spec: Mapping[str, Sequence[str]] | None = None,
        defaultFS: str = "file://",
        working_dir: str = ".",
        mgr: TFManager | None = None,
        tmp_socket: Any = None,
    ):
        self.worker_num = executor_id
        self.executor_id = executor_id
        self.job_name = job_name
        self.task_index = task_index
        self.cluster_spec = {job: list(tasks) for job, tasks in (cluster_spec or {}).items()}
        self.num_workers = sum(len(tasks) for job, tasks in self.cluster_spec.items() if job in TRAINING_JOBS)
        self.defaultFS = defaultFS
        self.working_dir = working_dir
        self.mgr = mgr
        self.tmp_socket = tmp_socket
        self._node: NodeContext | None = None

    @classmethod
    def of_node(cls, node: NodeContext) -> TFNodeContext:
        """The context of a node of a ``TFCluster``; for tfos_ml itself."""
        context = cls(
            node.executor_id,
            node.job_name,
            node.task_index,
            node.cluster_spec,
            default_fs(node.default_fs),
            node._node.settings.working_dir,
            TFManager(node),
            None if node._node.settings.release_port else _ReservedPort(node),
        )
        context._node = node
        return context

    @classmethod
    def of_instance(cls, node: NodeContext) -> TFNodeContext:
        """The context of an instance of ``TFParallel``, which is in no cluster; for tfos_ml itself."""
        context = cls(node.executor_id, defaultFS=default_fs(node.default_fs))
        context.num_workers = node.num_workers
        context._node = node
        return context

    def __getattr__(self, name: str) -> Any:
        node = None if name.startswith("_") else self.__dict__.get("_node")
        if node is None:
            raise AttributeError(f"TFNodeContext has no attribute {name!r}")
        return getattr(node, name)

    def absolute_path(self, path: str) -> str:
        """As :func:`TFNode.hdfs_path`."""
        return TFNode.hdfs_path(self, path)

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
        """As :func:`TFNode.start_cluster_server`."""
        return TFNode.start_cluster_server(self, num_gpus, rdma)

    def export_saved_model(
        self, sess: Any, export_dir: str | None = None, tag_set: str | None = None, signatures: Any = None
    ) -> Any:
        """Keep a model for ``cluster.model``, as :meth:`tfos_ml.NodeContext.export_saved_model` does.

        To be called on every node; the chief's model is kept. `signatures` are as of ``tf.saved_model.save``. To write
        a model to a directory, use ``compat.export_saved_model(model, export_dir, is_chief)``.
        """
        if self._node is None or export_dir is not None or tag_set is not None:
            TFNode.export_saved_model(sess, export_dir, tag_set, signatures)
        assert self._node is not None
        return self._node.export_saved_model(sess, signatures)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> TFNode.DataFeed:
        """As :class:`TFNode.DataFeed` of ``ctx.mgr``."""
        if self.mgr is None:
            raise ParamError(
                "ctx.get_data_feed(): this node is not fed. Instances of TFParallel read their data themselves; start "
                "a cluster with TFCluster.run(..., input_mode=TFCluster.InputMode.SPARK)."
            )
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """As :func:`TFNode.release_port`."""
        TFNode.release_port(self)


class _ReservedPort:
    """A port that the node's supervisor holds."""

    def __init__(self, node: NodeContext):
        self._node = node

    def getsockname(self) -> tuple[str, int]:
        """Its address and number, as a socket's: on all addresses of this host."""
        address = self._node.cluster_spec[self._node.job_name][self._node.task_index]
        return "0.0.0.0", int(address.rpartition(":")[2])

    def close(self) -> None:
        """Free it."""
        self._node.release_port()


def default_fs(uri: str) -> str:
    """A default filesystem as programs of TensorFlowOnSpark see it: of the local one, without the root's slash.

    >>> default_fs("file:///"), default_fs("hdfs://nn:8020")
    ('file://', 'hdfs://nn:8020')
    """
    return uri.removesuffix("/") if uri.startswith("file:///") else uri
