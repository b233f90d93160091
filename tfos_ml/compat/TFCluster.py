"""A cluster of TensorFlow nodes: ``run``, and what it returns."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tfos_ml.compat.map_functions import MapFun, run_in_cluster
from tfos_ml.stages.input_mode import InputMode as SparkInputMode
from tfos_ml.tfcluster import tfcluster
from tfos_ml.tfcluster.cluster_arguments import check_map_fun

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from tfos_ml.driver.session_facts import SessionFacts
    from tfos_ml.protocol.control_messages import NodeProgress
    from tfos_ml.protocol.node_task import NodeTask

logger = logging.getLogger(__name__)
EPOCHS_OF_ZERO = 10


class InputMode:
    """Who reads the data: the map functions, or Spark, which feeds rows to them."""

    TENSORFLOW = 0
    SPARK = 1


class TFCluster(tfcluster.TFCluster):
    """A running cluster; made by :func:`run`.

    It is a :class:`tfos_ml.TFCluster` with the attributes and defaults of TensorFlowOnSpark's. Its
    :meth:`shutdown` is described there.
    """

    _takes_port_variables = True
    queues: list[str]

    def __init__(self, spark: SparkSession, facts: SessionFacts, task: NodeTask, input_mode: str):
        super().__init__(spark, facts, task, input_mode)
        ranks = range(task.driver_nodes, task.template.size)
        self.sc = spark.sparkContext
        self.nodeRDD = self.sc.parallelize(ranks, len(ranks))
        self.num_executors = task.template.size
        self.defaultFS = task.settings.default_fs
        self.working_dir = task.settings.working_dir
        self.input_mode = InputMode.SPARK if self._is_fed else InputMode.TENSORFLOW
        self.server = self._control

    @property
    def cluster_info(self) -> list[dict[str, Any]]:
        """The nodes, as of :class:`tfos_ml.TFCluster`, with ``tb_port`` and ``tb_pid``.

        There is no manager, and so no ``addr`` and ``authkey``.
        """
        progress = self.server.nodes.progress() if self.tensorboard_url() else {}
        return [{**node, **_tensorboard(progress.get(node["executor_id"]))} for node in super().cluster_info]

    @property
    def cluster_meta(self) -> dict[str, Any]:
        """Id, template, number of nodes, default filesystem, working directory, and ``server_addr``.

        ``server_addr`` is for ``reservation.Client``. It holds a token, which is not printed.
        """
        jobs: dict[str, list[int]] = {}
        for node in self._run.task.template.nodes:
            jobs.setdefault(node.job_name, []).append(node.rank)
        return {
            "id": self.cluster_id,
            "cluster_template": jobs,
            "num_executors": self.num_executors,
            "default_fs": self.defaultFS,
            "working_dir": self.working_dir,
            "server_addr": self.server.address,
        }

    @property
    def meta(self) -> dict[str, Any]:
        """As :attr:`cluster_meta`."""
        return self.cluster_meta

    def train(self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input") -> None:
        """Feed the rows of an RDD, a DataFrame or a DStream to the nodes, and return when they have been read.

        The map functions get the rows `num_epochs` times; 0 is 10 times. Each micro-batch of a DStream is fed once, as
        it comes. `feed_timeout` is how many seconds rows may wait without one being read. The RDD is computed once.
        With parameter servers and a chief all rows go to the chief.
        """
        if num_epochs == 0 and not hasattr(dataRDD, "foreachRDD"):
            logger.info("num_epochs=0: the rows are fed %d times", EPOCHS_OF_ZERO)
            num_epochs = EPOCHS_OF_ZERO
        super().train(dataRDD, num_epochs, feed_timeout, qname)

    def _is_stop_requested(self) -> bool:
        """Also if a map function has called ``DataFeed.terminate()``."""
        return super()._is_stop_requested() or any(
            node.stopped_reading for node in self.server.nodes.progress().values()
        )


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
    """Start a cluster, and return when all nodes have connected.

    Arguments are those of TensorFlowOnSpark, and nearly those of :meth:`tfos_ml.TFCluster.run`. Every node calls
    ``map_fun(args, ctx)`` with a ``TFSparkNode.TFNodeContext``. A list for `tf_args` becomes ``sys.argv`` as well, and
    ``num_gpus`` in it is the number of GPUs of a node. ``TF_CONFIG`` is set only if there is a `master_node`
    (``"chief"`` or ``"master"``); the evaluator is no member of its cluster. With ``release_port=False``, `map_fun`
    calls ``ctx.release_port()``.

    The ports of ``TFOS_SERVER_PORT``, ``TENSORFLOW_PORT`` and ``TENSORBOARD_PORT`` are used if the settings
    ``spark.tfos_ml.port``, ``.nodePorts`` and ``.tensorboardPort`` are not set. Wrong arguments raise before anything
    starts.
    """
    check_map_fun(map_fun)
    modes: dict[int, Any] = {InputMode.SPARK: SparkInputMode.SPARK, InputMode.TENSORFLOW: SparkInputMode.TENSORFLOW}
    cluster = TFCluster.run(
        sc,
        partial(run_in_cluster, map_fun),
        tf_args,
        num_executors,
        num_ps,
        tensorboard=tensorboard,
        input_mode=modes.get(input_mode, input_mode),
        log_dir=log_dir,
        driver_ps_nodes=driver_ps_nodes,
        master_node=master_node,
        reservation_timeout=reservation_timeout,
        queues=queues,
        eval_node=eval_node,
        release_port=release_port,
    )
    cluster.queues = list(queues)
    return cluster
