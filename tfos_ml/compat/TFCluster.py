"""A cluster of TensorFlow nodes: ``run``, and what it returns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tfos_ml import errors
from tfos_ml.compat.map_functions import MapFun, run_in_cluster
from tfos_ml.driver.programs import check_map_fun
from tfos_ml.stages.input_mode import InputMode as NativeMode
from tfos_ml.tfcluster import tfcluster

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

    from tfos_ml.protocol.control_messages import NodeProgress

logger = logging.getLogger(__name__)
EPOCHS_OF_ZERO = 10
WATCH_SECONDS = 0.5


class InputMode:
    """Who reads the data.

    Attributes
    ----------
    TENSORFLOW : int
        The map functions.
    SPARK : int
        Spark, which feeds rows to them.
    """

    TENSORFLOW = 0
    SPARK = 1


_MODES = {NativeMode.TENSORFLOW: InputMode.TENSORFLOW, NativeMode.SPARK: InputMode.SPARK}


class TFCluster:
    """A running cluster; made by :func:`run`.

    Attributes
    ----------
    native : tfos_ml.TFCluster
        The cluster beneath, for what it has beside: ``model``, ``summary``, ``feed_batch`` for Structured Streaming.
    sc : pyspark.SparkContext
        Where it runs.
    defaultFS, working_dir : str
        Default filesystem of Spark, and the driver's working directory.
    num_executors : int
        Number of nodes.
    nodeRDD : pyspark.RDD
        The ranks, a partition each.
    cluster_id : str
        Unique to this cluster.
    input_mode : int
        As given to :func:`run`.
    queues : list of str
        As given to :func:`run`.
    server : object
        The driver's end.

    Notes
    -----
    Differences: attributes that were None there (``cluster_id``, ``defaultFS``, ``num_executors``, ``working_dir``)
    have their values. It is a context manager, too, that shuts down at the end.
    """

    def __init__(self, native: tfcluster.TFCluster, queues: Sequence[str]):
        self.native = native
        self.sc: SparkContext = native.sc
        self.defaultFS = native.defaultFS
        self.working_dir = native.working_dir
        self.num_executors = native.num_executors
        self.nodeRDD: RDD[int] = native.nodeRDD
        self.cluster_id = native.cluster_id
        self.input_mode = _MODES[native.input_mode]
        self.queues = list(queues)
        self.server = native.server
        self._has_board = False

    @property
    def cluster_info(self) -> list[dict[str, Any]]:
        """The nodes: ``executor_id``, ``job_name``, ``task_index``, ``host``, ``port``, ``tb_port``, ``tb_pid``.

        Differences: ``addr`` and ``authkey`` are gone, as there is no manager; ``pid`` is that of the node.
        """
        url = self.tensorboard_url() if self._has_board else None
        progress = self.server.nodes.progress() if url else {}
        return [{**_tensorboard(progress.get(node["executor_id"])), **node} for node in self.native.cluster_info]

    @property
    def cluster_meta(self) -> dict[str, Any]:
        """Id, template, number of nodes, default filesystem, working directory, and ``server_addr``.

        Differences: ``server_addr`` is what ``reservation.Client`` takes, and holds a token that is not printed.
        """
        return {**self.native.cluster_meta, "server_addr": self.native.address}

    @property
    def meta(self) -> dict[str, Any]:
        """As :attr:`cluster_meta`."""
        return self.cluster_meta

    def train(self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input") -> None:
        """Feed rows to the nodes, and return once they have been read.

        Parameters
        ----------
        dataRDD : pyspark.RDD or pyspark.streaming.DStream
            The rows; or a DataFrame. Each micro-batch of a DStream is fed once, as it comes.
        num_epochs : int, default 0
            How often the map functions get the rows; 0 is 10 times, as there.
        feed_timeout : float, default 600
            Seconds that rows may wait without one being read.
        qname : str, default "input"
            The queue.

        Notes
        -----
        Differences: the RDD is computed once, not in each epoch. With parameter servers and a chief all rows go to the
        chief.
        """
        if not isinstance(num_epochs, int) or isinstance(num_epochs, bool) or num_epochs < 0:
            raise errors.ParamError(f"num_epochs must be an integer of at least 0. Received: {num_epochs!r}")
        is_stream = hasattr(dataRDD, "foreachRDD")
        if num_epochs == 0 and not is_stream:
            logger.info("num_epochs=0: the rows are fed %d times", EPOCHS_OF_ZERO)
        epochs = 1 if is_stream else num_epochs or EPOCHS_OF_ZERO
        self.native.train(dataRDD, epochs, feed_timeout, qname)

    def inference(self, dataRDD: RDD[Any], feed_timeout: float = 600, qname: str = "input") -> RDD[Any]:
        """A result for each row, in order; computed by an action.

        Parameters
        ----------
        dataRDD : pyspark.RDD
            The rows.
        feed_timeout : float, default 600
            Seconds that rows may wait without one being read.
        qname : str, default "input"
            The queue.
        """
        results: RDD[Any] = self.native.inference(dataRDD, feed_timeout, qname)
        return results

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """End the feed, wait until all map functions have returned, and clean up.

        Parameters
        ----------
        ssc : pyspark.streaming.StreamingContext, optional
            A stream that feeds the cluster: it is waited for first, and ended once a map function has called
            ``DataFeed.terminate()`` or somebody ``reservation.Client(...).request_stop()``.
        grace_secs : float, default 0
            Seconds that evaluators and parameter servers have left to return after the map functions of the chief and
            the workers, which are waited for anyway; 0 leaves it to ``spark.tfos_ml.evaluatorGrace`` (60 s) and
            ``spark.tfos_ml.serverGrace`` (5 s).
        timeout : float, default 259200
            Seconds for all of it; 0 or less for no limit.

        Raises
        ------
        tfos_ml.errors.NodeError
            The first failure of a node.
        tfos_ml.errors.ShutdownTimeoutError
            If `timeout` has passed; the nodes have been ended.

        Notes
        -----
        Differences: after a failure or a timeout it raises, and neither ends the program nor stops its SparkContext.
        In ``InputMode.SPARK``, too, it waits for the map functions rather than for `grace_secs`, which is no pause: who
        has returned ends it early. Evaluators that have not are ended with a warning.
        """
        watched = threading.Event()
        if ssc is not None:
            threading.Thread(target=self._stop_when_terminated, args=(watched,), name="terminated", daemon=True).start()
        try:
            self.native.shutdown(ssc, grace_secs, timeout)
        finally:
            watched.set()

    def _stop_when_terminated(self, over: threading.Event) -> None:
        """Ask for the end of the stream once a map function reads no further."""
        while not over.wait(WATCH_SECONDS):
            if any(node.over for node in self.server.nodes.progress().values()):
                self.native.request_stop()
                return

    def tensorboard_url(self) -> str | None:
        """URL of TensorBoard, None if it was not requested; waits until it answers."""
        return self.native.tensorboard_url()

    def __enter__(self) -> TFCluster:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.native.__exit__(kind, error, traceback)


class _Native(tfcluster.TFCluster):
    _takes_port_variables = True


def _tensorboard(node: NodeProgress | None) -> dict[str, Any]:
    """Port and process id of a node's TensorBoard; zeros if it has none."""
    if node is None or not node.tensorboard:
        return {"tb_port": 0, "tb_pid": 0}
    return {"tb_port": urlsplit(node.tensorboard).port, "tb_pid": node.tensorboard_pid}


def run(
    sc: SparkContext,
    map_fun: MapFun,
    tf_args: Any,
    num_executors: int,
    num_ps: int,
    tensorboard: bool = False,
    input_mode: int = InputMode.TENSORFLOW,
    log_dir: str | None = None,
    driver_ps_nodes: bool = False,
    master_node: str | None = None,
    reservation_timeout: float = 600,
    queues: Sequence[str] = ("input", "output", "error"),
    eval_node: bool = False,
    release_port: bool = True,
) -> TFCluster:
    """Start a cluster, and return once all nodes have met.

    Parameters
    ----------
    sc : pyspark.SparkContext
        Where.
    map_fun : callable
        ``map_fun(args, ctx)``, the TensorFlow main function of every node; ``ctx`` is a ``TFSparkNode.TFNodeContext``.
    tf_args : object
        Passed to it as it is; a list becomes ``sys.argv`` as well. ``num_gpus`` in it is the number of GPUs of a node.
    num_executors, num_ps : int
        Number of all nodes, and how many of them are parameter servers.
    tensorboard : bool, default False
        Whether the chief starts TensorBoard.
    input_mode : {InputMode.TENSORFLOW, InputMode.SPARK}
        Whether the map functions read their data themselves, or are fed.
    log_dir : str, optional
        Where TensorBoard looks, ``ctx.log_dir``.
    driver_ps_nodes : bool, default False
        Whether parameter servers run on the driver's host; with ``InputMode.TENSORFLOW`` only.
    master_node : {"chief", "master"}, optional
        Job name of the chief. ``TF_CONFIG`` is set if there is one, and only then.
    reservation_timeout : float, default 600
        Seconds within which all nodes must have met.
    queues : sequence of str
        Names that ``train(qname=)`` and ``DataFeed(qname_in=)`` may use.
    eval_node : bool, default False
        Whether one node is an evaluator.
    release_port : bool, default True
        Whether a node's reserved port is released before `map_fun` is called; else it calls ``ctx.release_port()``.

    Notes
    -----
    Differences: executors may have several slots. The evaluator is no member of the cluster in ``TF_CONFIG``, and may
    be requested in ``InputMode.SPARK``, too. Without `log_dir`, TensorBoard's directory is
    ``tensorboard_<cluster_id>`` in the working directory of the chief's executor. The ports of ``TFOS_SERVER_PORT``,
    ``TENSORFLOW_PORT`` and ``TENSORBOARD_PORT`` count where the settings ``spark.tfos_ml.port``, ``.nodePorts`` and
    ``.tensorboardPort`` are not set. Wrong arguments raise before anything starts.
    """
    check_map_fun(map_fun)
    native = _Native.run(
        sc,
        partial(run_in_cluster, map_fun),
        tf_args,
        num_executors,
        num_ps,
        tensorboard=tensorboard,
        input_mode=input_mode,
        log_dir=log_dir,
        driver_ps_nodes=driver_ps_nodes,
        master_node=master_node,
        reservation_timeout=reservation_timeout,
        queues=queues,
        eval_node=eval_node,
        release_port=release_port,
    )
    cluster = TFCluster(native, queues)
    cluster._has_board = tensorboard
    return cluster
