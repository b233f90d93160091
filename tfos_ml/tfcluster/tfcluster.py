"""``TFCluster``: a cluster of TensorFlow nodes that a program leads itself."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from tfos_ml import errors
from tfos_ml.agent.feed_task import FeedNode
from tfos_ml.agent.node_identity import NodeInfo
from tfos_ml.common.arguments import check_not_streaming
from tfos_ml.common.timeouts import CLEANUP_SECONDS, FEED_TIMEOUT, RESERVATION_TIMEOUT
from tfos_ml.common.tracebacks import concise
from tfos_ml.driver.attempt import RunResult
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.driver.progress import NodesWatch
from tfos_ml.driver.run import Run
from tfos_ml.driver.session_facts import SessionFacts
from tfos_ml.protocol import results
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.grace_periods import warn_of_ended
from tfos_ml.protocol.pickling import pack_program
from tfos_ml.stages.constraints import SECONDS, integer
from tfos_ml.stages.input_mode import InputMode
from tfos_ml.stages.tf_model import TFModel
from tfos_ml.tfcluster.cluster_arguments import check_arguments, check_map_fun, classic_session
from tfos_ml.tfcluster.feeding import Feeding
from tfos_ml.tfcluster.shutdown import Shutdown
from tfos_ml.tfcluster.start import await_tensorboard, check_spark, make_task, start_nodes

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

    from tfos_ml.protocol.node_task import NodeTask


class TFCluster:
    """A running cluster. :meth:`run` starts and returns it.

    Nodes use no task slot while they are fed (``InputMode.SPARK``). With ``InputMode.TENSORFLOW`` each uses one until
    it has ended. A ``with`` block shuts the cluster down at its end, and stops all nodes if the block raises.

    Attributes
    ----------
    cluster_id : str
        Unique to this cluster.
    cluster_info : list of dict
        ``executor_id`` (rank), ``job_name``, ``task_index``, ``host``, ``port`` and ``pid`` of each node.
    summary : dict
        After :meth:`shutdown`, under ``"nodes"`` what each node reports of itself, with its metrics.

    Examples
    --------
    >>> def map_fun(args, ctx):                                     # doctest: +SKIP
    ...     feed = ctx.get_data_feed()
    ...     while not feed.should_stop():
    ...         batch = feed.next_batch(64)
    >>> with TFCluster.run(sc, map_fun, None, 2, 0, input_mode=InputMode.SPARK) as cluster:     # doctest: +SKIP
    ...     cluster.train(rdd, num_epochs=3)
    """

    __module__ = "tfos_ml"

    InputMode = InputMode
    _takes_port_variables: ClassVar[bool] = False  # of TensorFlowOnSpark

    def __init__(self, spark: SparkSession, facts: SessionFacts, task: NodeTask, input_mode: str):
        context = spark.sparkContext
        control = ControlServer(facts.endpoint, task.template, is_wanted=lambda: context._jsc is not None)
        self.cluster_id = task.run_id
        self.summary: dict[str, Any] = {}
        self._control = control
        self._run = Run(spark, task, control)
        self._is_fed = input_mode == InputMode.SPARK
        self._infos: list[NodeInfo] = []
        self._release = weakref.finalize(self, control.close)  # nodes end without the driver's server
        self._watch = NodesWatch(control, self._run.expire_leases)
        self._feeding = Feeding(self._run, ())
        self._unseen: errors.TfosMlError | None = None  # what a stream's thread has raised
        self._closed = False
        self._refuses_batches = False
        self._results = results.Results()

    @classmethod
    @concise
    def run(
        cls,
        sc: SparkContext | SparkSession,
        map_fun: Callable[[Any, Any], Any],
        tf_args: Any,
        num_executors: int,
        num_ps: int = 0,
        tensorboard: bool = False,
        input_mode: str = InputMode.TENSORFLOW,
        log_dir: str | None = None,
        driver_ps_nodes: bool = False,
        master_node: str | None = None,
        reservation_timeout: float = RESERVATION_TIMEOUT,
        queues: Sequence[str] = ("input", "output", "error"),
        eval_node: bool = False,
        release_port: bool = True,
        verbose: int = 1,
    ) -> Self:
        """Start a cluster, and return when all nodes have connected.

        Parameters
        ----------
        sc : pyspark.SparkContext or pyspark.sql.SparkSession
            The application whose executors run the nodes; not on Spark Connect.
        map_fun : callable
            ``map_fun(args, ctx)``, the TensorFlow main function of every node; ``ctx`` is a :class:`NodeContext`.
        tf_args : object
            Passed to `map_fun` unchanged. A list also becomes ``sys.argv``.
        num_executors, num_ps : int
            Number of nodes, and how many of them are parameter servers.
        tensorboard : bool, default False
            Whether the chief starts TensorBoard.
        input_mode : {InputMode.TENSORFLOW, InputMode.SPARK}
            Whether the nodes read files themselves or are fed.
        log_dir : str, optional
            Where TensorBoard looks, ``ctx.log_dir``. Default with `tensorboard`: ``tensorboard_<cluster_id>`` in the
            working directory of the chief's executor, which stays; else a directory that goes with the node.
        driver_ps_nodes : bool, default False
            Whether parameter servers run on the driver's host, without a slot of Spark's. ``InputMode.TENSORFLOW``
            only.
        master_node : {"chief", "master"}, optional
            Job name of the chief; without it worker 0 is chief.
        reservation_timeout : float, default 600
            Seconds within which all nodes must have connected.
        queues : sequence of str
            Names that ``train(qname=)`` and ``ctx.get_data_feed(qname_in=)`` may use.
        eval_node : bool, default False
            Whether one node is an evaluator.
        release_port : bool, default True
            Whether a node's reserved port is released before `map_fun` is called; else it calls
            ``ctx.release_port()``.
        verbose : {0, 1, 2}, default 1
            Output of the nodes that the driver shows on stderr while the cluster runs: nothing, lines of ``ctx.log``,
            or everything. In local mode everything is on the console anyway.

        Raises
        ------
        InvalidInputError
            Before anything starts.
        ReservationTimeoutError
            Names the nodes that did not come.
        NodeError
            If a node fails meanwhile.
        """
        spark = classic_session(sc, "TFCluster")
        template = make_template(num_executors, num_ps, master_node, eval_node)
        check_map_fun(map_fun)
        check_arguments(input_mode, driver_ps_nodes, queues, reservation_timeout)
        on_driver = num_ps if driver_ps_nodes else 0
        check_spark(spark, num_executors, on_driver, reservation_timeout)
        program = pack_program("map_fun", map_fun, (map_fun, tf_args), {"tf_args": tf_args})
        facts = SessionFacts.of(spark, cls._takes_port_variables)
        settings = replace(
            facts.node_settings,
            queues=list(queues) if input_mode == InputMode.SPARK else [],
            release_port=release_port,
            tensorboard=tensorboard,
            log_dir=log_dir,
        )
        task = make_task(
            spark,
            facts,
            template,
            program,
            settings,
            barrier=False,
            driver_nodes=on_driver,
            reservation_timeout=reservation_timeout,
            grace_periods=facts.grace_periods,
            verbose=verbose,
        )
        cluster = cls(spark, facts, task, input_mode)
        cluster._start(program)
        return cluster

    def _start(self, program: bytes) -> None:
        self._watch.start()
        try:
            self._infos = start_nodes(self._run, program, self._is_fed)
        except BaseException:
            self._close()
            raise
        fed = tuple(FeedNode(info.rank, info.host, info.feed, info.label) for info in self._infos if info.feed)
        self._feeding = Feeding(self._run, fed)

    @property
    def cluster_info(self) -> list[dict[str, Any]]:
        """See the attributes of the class."""
        return [
            {
                "executor_id": node.rank,
                "job_name": node.job_name,
                "task_index": node.task_index,
                "host": info.host,
                "port": info.port,
                "pid": info.pid,
            }
            for node, info in zip(self._run.task.template.nodes, self._infos, strict=True)
        ]

    # Feeding

    @concise
    def train(
        self, dataRDD: Any, num_epochs: int = 1, feed_timeout: float = FEED_TIMEOUT, qname: str = "input"
    ) -> None:
        """Feed rows to the nodes, and return when they have been read.

        Parameters
        ----------
        dataRDD : pyspark.RDD, pyspark.sql.DataFrame or pyspark.streaming.DStream
            The rows. An RDD or DataFrame is computed once. For a DStream this call returns at once, and each
            micro-batch is fed when it arrives.
        num_epochs : int, default 1
            How often the train functions get the rows, which the nodes keep for that. With 0 the rows are repeated
            until all train functions that got some have returned or called ``feed.terminate()``. Rows of a DStream
            are fed once.
        feed_timeout : float, default 600
            Seconds that rows may wait on a node without one being read, also while others are still on their way.
        qname : str, default "input"
            The queue.

        Raises
        ------
        NodeError
            The first failure of a node; the cluster has then ended.
        FeedTimeoutError
            If the train function stops reading.
        InputLostError
            If Spark could not read all rows, or the nodes have received other rows than Spark has read. They may have
            trained on some of them.
        """
        self._check_feed(qname)
        SECONDS.check("feed_timeout", feed_timeout)
        integer(0).check("num_epochs", num_epochs)
        if hasattr(dataRDD, "isStreaming"):
            check_not_streaming(dataRDD, "TFCluster.train")
        if hasattr(dataRDD, "foreachRDD"):
            dataRDD.foreachRDD(lambda rdd: self._feed_from_stream(rdd, num_epochs or 1, feed_timeout, qname))
        else:
            self._feed(dataRDD, num_epochs, feed_timeout, qname)

    def feed_batch(self, df: DataFrame, batch_id: int) -> None:
        """Feed a micro-batch of Structured Streaming: ``df.writeStream.foreachBatch(cluster.feed_batch)``.

        Raises
        ------
        ClusterClosedError
            If the stream is being ended: the micro-batch then counts as not processed.
        """
        if self._refuses_batches:
            raise errors.ClusterClosedError(f"Micro-batch {batch_id} is not fed: the stream is being ended.")
        self._check_feed("input")
        self._feed_from_stream(df, 1, FEED_TIMEOUT, "input")

    def _feed_from_stream(self, data: Any, epochs: int, feed_timeout: float, stream: str) -> None:
        """Feed in a thread of Spark's, whose error :meth:`shutdown` is to raise."""
        try:
            self._feed(data, epochs, feed_timeout, stream)
        except errors.TfosMlError as error:
            self._unseen = self._unseen or error
            raise

    def _feed(self, data: Any, epochs: int, feed_timeout: float, stream: str) -> None:
        with self._ended_by_failures():
            self._feeding.train(data, epochs, feed_timeout, stream)

    def inference(
        self,
        dataRDD: RDD[Any] | DataFrame,
        feed_timeout: float = FEED_TIMEOUT,
        qname: str = "input",
        schema: str = "prediction double",
    ) -> Any:
        """One result per row, in order. It is computed when an action needs it.

        Parameters
        ----------
        dataRDD : pyspark.RDD or pyspark.sql.DataFrame
            The rows.
        feed_timeout : float, default 600
            Seconds that rows may wait on a node without one being read or answered. The action then fails, and
            :meth:`shutdown` raises ``FeedTimeoutError``.
        qname : str, default "input"
            The queue.
        schema : str, default "prediction double"
            DDL schema of the results of a DataFrame. Results with names are matched by name, others by position.

        Returns
        -------
        pyspark.RDD or pyspark.sql.DataFrame
            The results. For a DataFrame, its own columns followed by those of the results.
        """
        self._check_feed(qname)
        SECONDS.check("feed_timeout", feed_timeout)
        return self._feeding.infer(dataRDD, feed_timeout, qname, schema)

    def _check_feed(self, qname: str) -> None:
        if not self._is_fed:
            raise errors.ClusterConfigError(
                "input_mode=InputMode.TENSORFLOW: the nodes read their data themselves. To feed rows, start the "
                "cluster with input_mode=InputMode.SPARK."
            )
        queues = self._run.task.settings.queues or []
        if qname not in queues:
            raise errors.ParamError(f"qname must be one of the queues given to run(), {queues}. Got: {qname!r}")
        if self._closed:
            raise errors.ClusterClosedError(
                f"Cluster {self.cluster_id} has ended. Start another one with TFCluster.run()."
            )

    # The end

    def request_stop(self) -> None:
        """Request the end of the stream that ``shutdown(ssc)`` waits for."""
        self._control.feeds.stop_requested = True

    def _is_stop_requested(self) -> bool:
        return self._control.feeds.stop_requested

    @concise
    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """End the feed, wait until all map functions have returned, and clean up. It can be called again.

        It waits for chief and workers as long as they work. Parameter servers and evaluators then learn of the end
        (``ctx.should_stop()``, ``ctx.wait()``), and are stopped after a grace. See
        ``docs/explanation/reliability.rst``.

        Parameters
        ----------
        ssc : pyspark.streaming.StreamingContext or pyspark.sql.streaming.StreamingQuery, optional
            A stream that feeds the cluster. It is waited for first, and stopped after :meth:`request_stop`.
        grace_secs : float, default 0
            Seconds that evaluators and parameter servers have left to return, counted from the end of the last chief
            and worker, and not before this call. 0 leaves it to ``spark.tfos_ml.evaluatorGrace`` (60 s), and
            parameter servers have 5 s. It does not shorten the work of a chief or worker, and is not a pause.
        timeout : float, default 259200
            Seconds for all of it; 0 or less for no limit.

        Warns
        -----
        NodeEndedWarning
            Names an evaluator that had not returned by then, or a worker that still worked
            ``spark.tfos_ml.workerGrace`` after the chief of a cluster with parameter servers; they have been ended.

        Raises
        ------
        NodeError
            The first failure of a node, unless it has been raised before.
        FitCancelledError
            If the job that fed a micro-batch was canceled.
        ShutdownTimeoutError
            Names the nodes that did not end within `timeout`; they have been ended.
        """
        if self._closed:
            unseen, self._unseen = self._unseen, None
            if unseen is not None:
                raise unseen
            return
        timeout = timeout if timeout > 0 else math.inf
        shutdown = Shutdown(self._run, timeout, time.monotonic() + timeout)
        try:
            if ssc is not None and not shutdown.has_stream_ended(ssc, self._is_stop_requested):
                self._refuses_batches = True
                shutdown.stop_stream(ssc)
            shutdown.await_nodes(grace_secs)
        except BaseException as error:
            self._close()
            unseen, self._unseen = self._unseen, None
            if unseen is not None and isinstance(error, Exception) and not isinstance(error, errors.TfosMlError):
                raise unseen from error  # Spark's error of the stream only has its text
            raise
        self._results = self._control.nodes.results()
        reports = list(self._control.nodes.summaries(self._results.rows).values())
        self.summary = {"nodes": reports, "rows": sum(r["rows"] for r in reports)}
        self._close()
        warn_of_ended(reports)

    def tensorboard_url(self) -> str | None:
        """URL of the chief's TensorBoard, which ends with the chief, once it answers; None if none was requested."""
        if not self._run.task.settings.tensorboard:
            return None
        with self._ended_by_failures():
            return await_tensorboard(self._run)

    @property
    def model(self) -> TFModel:
        """The model that the chief exported with ``ctx.export_saved_model``; available after :meth:`shutdown`."""
        return TFModel._from_run(RunResult(self.summary["nodes"], [], self._results.model), [])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            self.shutdown()
        else:
            self._close()

    @contextlib.contextmanager
    def _ended_by_failures(self) -> Iterator[None]:
        """Around what may raise the failure of a node: the cluster has then ended."""
        try:
            yield
        except errors.TfosMlError:
            if self._control.nodes.failure() is not None:
                self._close()
            raise

    def _close(self) -> None:
        """End the nodes, whatever they do, wait until nothing of them is left, and stop listening."""
        if self._closed:
            return
        self._closed = True
        self._run.close()
        self._watch.close(CLEANUP_SECONDS)
