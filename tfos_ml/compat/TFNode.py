"""Helpers for map functions: the feed, paths, the node's server and port."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tfos_ml.compat.gpu_info import assign_gpus
from tfos_ml.compat.util import removed
from tfos_ml.errors import ParamError
from tfos_ml.protocol.paths import absolute_path

if TYPE_CHECKING:
    from tfos_ml.compat.TFManager import TFManager

logger = logging.getLogger(__name__)

export_saved_model = removed(
    "TFNode.export_saved_model",
    "It exports sessions of TensorFlow 1. Use compat.export_saved_model(model, export_dir, is_chief), or "
    "ctx.export_saved_model(model).",
)
next_batch, batch_results, terminate = (
    removed(f"TFNode.{name}", f"Use TFNode.DataFeed(ctx.mgr).{name}().")
    for name in ("next_batch", "batch_results", "terminate")
)


def hdfs_path(ctx: Any, path: str) -> str:
    """An absolute URI that TensorFlow understands, the same on all nodes.

    A URI does not change. An absolute path is put on the default filesystem, a relative one into the user's home there
    or, on the local filesystem, into the driver's working directory. `ctx` is any object that has ``defaultFS`` and
    ``working_dir``.

    >>> from types import SimpleNamespace
    >>> hdfs_path(SimpleNamespace(defaultFS="file://", working_dir="/home/me"), "model")
    'file:///home/me/model'
    >>> hdfs_path(SimpleNamespace(defaultFS="hdfs://nn:8020", working_dir="/home/me"), "/model")
    'hdfs://nn:8020/model'
    """
    absolute = absolute_path(path, ctx.defaultFS, ctx.working_dir)
    return absolute if urlsplit(absolute).scheme else f"file://{absolute}"


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
    """Start this node's TensorFlow server, with `num_gpus` GPUs if this host has any.

    Returns the cluster as a ``tf.train.ClusterSpec``, of which the evaluator is no member, and the server.

    It works with TensorFlow 2, for ``ParameterServerStrategy``, unlike that of TensorFlowOnSpark. A parameter server
    then calls ``ctx.wait()``, which returns when the cluster is shut down. `rdma` must be false.
    """
    if rdma:
        raise ParamError("start_cluster_server(rdma=True): TensorFlow 2 has no server for RDMA. Leave rdma out.")
    assign_gpus(ctx, num_gpus if ctx.job_name != "ps" else 0, needs_them=False)
    return ctx.tf_cluster_spec(), ctx.start_server()


def release_port(ctx: Any) -> None:
    """Free the port reserved for TensorFlow; for clusters started with ``release_port=False``."""
    if ctx.tmp_socket is None:
        logger.warning("release_port(): the port has been released already")
        return
    ctx.tmp_socket.close()
    ctx.tmp_socket = None


class DataFeed:
    """The rows that are fed to this node; made of ``ctx.mgr``.

    If `train_mode` is false, answer rows with :meth:`batch_results`. `qname_in` is the queue to read; `qname_out` has
    no effect. With `input_mapping`, tensor names by column, batches are dicts: the fields of a row are the columns
    sorted by name, as ``pipeline.TFEstimator`` feeds them. ``done_feeding`` is whether the end has been read.
    """

    def __init__(
        self,
        mgr: TFManager,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ):
        self.mgr = mgr
        self.train_mode = train_mode
        self.qname_in = qname_in
        self.qname_out = qname_out
        self.done_feeding = False
        self.input_tensors = None if input_mapping is None else [t for _, t in sorted(input_mapping.items())]
        self._feed = mgr.open_feed(train_mode, qname_in)

    def next_batch(self, batch_size: int) -> list[Any] | dict[str, list[Any]]:
        """The next rows, as they were in the RDD: `batch_size`, or fewer or none at the end of the feed.

        With ``input_mapping`` it is a list of values for each tensor. Batches for inference can be smaller.
        """
        rows: list[Any] = self._feed.next_batch(batch_size)
        if not rows or (self.train_mode and len(rows) < batch_size):
            self.done_feeding = True
        if self.input_tensors is None:
            return rows
        return {tensor: [row[i] for row in rows] for i, tensor in enumerate(self.input_tensors)}

    def should_stop(self) -> bool:
        """Whether the end of the feed has been read; does not wait for rows."""
        return self.done_feeding

    def batch_results(self, results: Sequence[Any]) -> None:
        """Answer the rows read first and not answered yet, one result each."""
        self._feed.batch_results(results)

    def terminate(self) -> None:
        """Stop reading, and return at once: what is still fed to this node is dropped, and its stream is ended."""
        self.done_feeding = True
        self.mgr.set("state", "terminating")
        self._feed.terminate()
