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
    """Who reads the data: the map functions, or Spark, which feeds rows to them."""

    TENSORFLOW = 0
    SPARK = 1


_MODES = {NativeMode.TENSORFLOW: InputMode.TENSORFLOW, NativeMode.SPARK: InputMode.SPARK}


class TFCluster:
    """A running cluster; made by :func:`run`.

    Attributes are those of TensorFlowOnSpark, and ``native``, the :class:`tfos_ml.TFCluster` beneath, for what it has
    beside: ``model``, ``summary``, ``feed_batch`` for Structured Streaming.

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
        """Feed the rows of an RDD, a DataFrame or a DStream to the nodes, and return once they have been read.

        The map functions get the rows `num_epochs` times; 0 is 10 times, as there. Each micro-batch of a DStream is fed
        once, as it comes. `feed_timeout` is how many seconds rows may wait without one being read.

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
        """A result for each row, in order; computed by an action. Arguments are as of :meth:`train`."""
        results: RDD[Any] = self.native.inference(dataRDD, feed_timeout, qname)
        return results

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """End the feed, wait until all map functions have returned, and clean up.

        A stream `ssc` that feeds the cluster is waited for first, and ended once a map function has called
        ``DataFeed.terminate()`` or somebody ``reservation.Client(...).request_stop()``. `timeout` is how many seconds
        all of it may take; 0 or less for no limit. Raises ``ShutdownTimeoutError`` once they have passed and the nodes
        have been ended, and the first failure of a node as a ``NodeError``.

        Differences: after a failure or a timeout it raises, and neither ends the program nor stops its SparkContext. In
        ``InputMode.SPARK``, too, it waits for the map functions of the chief and the workers. `grace_secs` is no pause,
        but what evaluators and parameter servers have left to return after these: who has returned ends it early, and
        evaluators that have not are ended with a warning. 0 leaves it to ``spark.tfos_ml.evaluatorGrace`` (60 s), and
        parameter servers have 5 s.
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

    Arguments are those of TensorFlowOnSpark, and nearly those of :meth:`tfos_ml.TFCluster.run`;
    docs/howto/migrate_tensorflowonspark.rst lists the differences. Every node calls ``map_fun(args, ctx)`` with a
    ``TFSparkNode.TFNodeContext``. A list for `tf_args` becomes ``sys.argv`` as well, and ``num_gpus`` in it is the
    number of GPUs of a node.
    ``TF_CONFIG`` is set if there is a `master_node` (``"chief"`` or ``"master"``), and only then. With
    ``release_port=False``, `map_fun` calls ``ctx.release_port()``.

    Differences: executors may have several slots. The evaluator is no member of the cluster in ``TF_CONFIG``, and may
    be requested in ``InputMode.SPARK``, too. Without `log_dir`, TensorBoard's directory is ``tensorboard_<cluster_id>``
    in the working directory of the chief's executor. The ports of ``TFOS_SERVER_PORT``, ``TENSORFLOW_PORT`` and
    ``TENSORBOARD_PORT`` count where the settings ``spark.tfos_ml.port``, ``.nodePorts`` and ``.tensorboardPort`` are
    not set. Wrong arguments raise before anything starts.
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
