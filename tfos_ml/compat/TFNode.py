"""Helpers for map functions: the feed, paths, the node's server and port."""

from __future__ import annotations

import getpass
import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tfos_ml.errors import ParamError, RemovedError

if TYPE_CHECKING:
    from tfos_ml.compat.TFManager import TFManager

logger = logging.getLogger(__name__)
_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


def hdfs_path(ctx: Any, path: str) -> str:
    """An absolute URI that TensorFlow understands, the same on all nodes.

    A URI stays as it is; an absolute path is put on the default filesystem; a relative one into the user's home there,
    on the local filesystem into the driver's working directory. For `ctx` anything will do that has ``defaultFS`` and
    ``working_dir``.

    Differences: every scheme counts (``gs://``, ``abfss://``...), not a list of them; a default filesystem that ends in
    a slash gives no double slash.

    >>> from types import SimpleNamespace
    >>> hdfs_path(SimpleNamespace(defaultFS="file://", working_dir="/home/me"), "model")
    'file:///home/me/model'
    >>> hdfs_path(SimpleNamespace(defaultFS="hdfs://nn:8020", working_dir="/home/me"), "/model")
    'hdfs://nn:8020/model'
    """
    if _URI.match(path):
        return path
    root = ctx.defaultFS if ctx.defaultFS.endswith("://") else ctx.defaultFS.removesuffix("/")
    if path.startswith("/"):
        return f"{root}{path}"
    if root.startswith(("hdfs://", "viewfs://")):
        return f"{root}/user/{getpass.getuser()}/{path}"
    if root.startswith("file:"):
        return f"{root}/{ctx.working_dir.removeprefix('/')}/{path}"
    logger.warning("%s has no home directory: the relative path %r is put at its root", root, path)
    return f"{root}/{path}"


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
    """Start this node's TensorFlow server, with `num_gpus` GPUs if this host has any.

    Returns the cluster as a ``tf.train.ClusterSpec``, of which the evaluator is no member, and the server.

    Differences: theirs raises with TensorFlow 2; this one works, for ``ParameterServerStrategy``. A parameter server
    then calls ``server.join()``, or better ``ctx.wait()``, which returns when the cluster is shut down. `rdma` must be
    false: TensorFlow 2 has none.
    """
    from tfos_ml.compat.gpus import assign_gpus

    if rdma:
        raise ParamError("start_cluster_server(rdma=True): TensorFlow 2 has no server for RDMA. Leave rdma out.")
    assign_gpus(ctx, num_gpus if ctx.job_name != "ps" else 0, needs_them=False)
    return ctx.tf_cluster_spec(), ctx.start_server()


def export_saved_model(sess: Any, export_dir: Any, tag_set: Any, signatures: Any) -> NoReturn:
    """Gone: sessions are of TensorFlow 1. Raises ``RemovedError``, as theirs raises with TensorFlow 2.

    Use ``compat.export_saved_model(model, export_dir, is_chief)``.
    """
    raise RemovedError(
        "TFNode.export_saved_model() and ctx.export_saved_model(sess, export_dir, tag_set, signatures) export sessions "
        "of TensorFlow 1. Use compat.export_saved_model(model, export_dir, is_chief), or ctx.export_saved_model(model)."
    )


def release_port(ctx: Any) -> None:
    """Free the port reserved for TensorFlow; for clusters started with ``release_port=False``."""
    if ctx.tmp_socket is None:
        logger.warning("release_port(): the port has been released already")
        return
    ctx.tmp_socket.close()
    ctx.tmp_socket = None


def next_batch(mgr: Any, batch_size: int, qname: str = "input") -> NoReturn:
    """Gone: use :class:`DataFeed`. Raises ``RemovedError``, as theirs does."""
    raise _use_datafeed("next_batch")


def batch_results(mgr: Any, results: Any, qname: str = "output") -> NoReturn:
    """Gone: use :class:`DataFeed`. Raises ``RemovedError``, as theirs does."""
    raise _use_datafeed("batch_results")


def terminate(mgr: Any, qname: str = "input") -> NoReturn:
    """Gone: use :class:`DataFeed`. Raises ``RemovedError``, as theirs does."""
    raise _use_datafeed("terminate")


def _use_datafeed(name: str) -> RemovedError:
    return RemovedError(f"TFNode.{name}() is gone. Use TFNode.DataFeed(ctx.mgr).{name}().")


class DataFeed:
    """The rows that are fed to this node; made of ``ctx.mgr``.

    With `train_mode` false, rows are answered with :meth:`batch_results`. `qname_in` is the queue to read. With
    `input_mapping`, tensor names by column, batches are dicts; the fields of a row are taken for the columns in their
    sorted order, as ``pipeline.TFEstimator`` feeds them. ``done_feeding`` is whether the end has been read.

    Differences: rows that can be no tensor (objects of classes of one's own) are refused when they are fed. Answers
    need ``train_mode=False``, and find their way without `qname_out`. After :meth:`terminate`, the feed has ended at
    once.
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
        """The next rows, as they were in the RDD: `batch_size`, fewer at the end of the feed, perhaps none.

        With ``input_mapping`` it is a list of values for each tensor.

        Differences: of rows to infer there are fewer where no more are at hand, not only at the end of a partition.
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
        """Read no further: what is still fed to this node is dropped, and a stream that feeds it is ended.

        Differences: returns at once; theirs empties its queue until that has been empty for five seconds.
        """
        self.done_feeding = True
        self.mgr.set("state", "terminating")
        self._feed.terminate()
