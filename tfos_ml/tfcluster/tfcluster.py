"""``TFCluster``: a cluster of TensorFlow nodes that a program leads itself."""

from __future__ import annotations

import json
import logging
import math
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from tfos_ml import errors
from tfos_ml.agent.detached import start_node
from tfos_ml.agent.feed_task import FeedNode, FeedOrder
from tfos_ml.agent.rendezvous import read_infos
from tfos_ml.common.sessions import is_local
from tfos_ml.common.tracebacks import concise
from tfos_ml.data.schema import FeedSchema
from tfos_ml.driver.cluster_server import ClusterAddress, ClusterServer
from tfos_ml.driver.driver_nodes import DriverNodes
from tfos_ml.driver.feed_jobs import feeding, inferring
from tfos_ml.driver.gather import Gather, one_at_a_time, raise_failure
from tfos_ml.driver.graceful_end import FEED_END_SECONDS, await_end, has_failed
from tfos_ml.driver.job_errors import typed_error
from tfos_ml.driver.node_lines import OutputPrinter
from tfos_ml.driver.preflight import check_settings, check_slots, graces, lease_timeout
from tfos_ml.driver.probe import check_executors
from tfos_ml.driver.programs import (
    CLEANUP_TIMEOUT,
    POLL_SECONDS,
    RESERVATION_TIMEOUT,
    check_map_fun,
    classic_session,
)
from tfos_ml.driver.run import RunResult
from tfos_ml.driver.spark_job import SparkJob
from tfos_ml.protocol import results
from tfos_ml.protocol.addresses import driver_endpoint, node_ports, tensorboard_port
from tfos_ml.protocol.artifacts import publish
from tfos_ml.protocol.claims import check_rows
from tfos_ml.protocol.graces import LEASE_SETTING, Limit, WaitNotice, warn_of_ended
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.pickling import pack_program
from tfos_ml.protocol.settings import FEED_TIMEOUT, NodeSettings
from tfos_ml.protocol.template import ClusterTemplate, make_template
from tfos_ml.stages.input_mode import InputMode
from tfos_ml.stages.model import TFModel
from tfos_ml.tfcluster.streams import has_ended, stop_stream

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)
STREAM_SECONDS = 0.5
BOARD_TIMEOUT = 60.0


class TFCluster:
    """A running cluster; made by :meth:`run`.

    The nodes hold no task slot of Spark's while they are fed (``InputMode.SPARK``); with
    ``InputMode.TENSORFLOW`` each holds one until it has ended. As a context manager it is shut down at the end,
    and given up if the body raises.

    Attributes
    ----------
    cluster_id : str
        Unique to this cluster.
    cluster_info : list of dict
        ``executor_id`` (rank), ``job_name``, ``task_index``, ``host``, ``port`` and ``pid`` of each node.
    cluster_meta : dict
        Id, template, number of nodes, default filesystem and working directory.
    input_mode : str
        ``InputMode.SPARK`` or ``InputMode.TENSORFLOW``.
    nodeRDD : pyspark.RDD
        The ranks, a partition each.
    num_executors : int
        Number of nodes.
    sc : pyspark.SparkContext
        Where it runs.
    server : ClusterServer
        The driver's end.
    defaultFS, working_dir : str
        Default filesystem of Spark, and the driver's working directory.
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

    def __init__(self, spark: SparkSession, task: NodeTask, input_mode: str, program: bytes, driver_ranks: range):
        self.sc: SparkContext = spark.sparkContext
        self.cluster_id = task.run_id
        self.input_mode = input_mode
        self.num_executors = task.template.size
        self.defaultFS: str = task.settings.default_fs
        self.working_dir: str = task.settings.working_dir
        self.cluster_info: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self._spark = spark
        self._template: ClusterTemplate = task.template
        self._queues = task.settings.queues or []
        self._wants_board: bool = task.settings.tensorboard
        self._tag = f"tfos_ml-{task.run_id}"
        context = self.sc
        assert task.lease is not None
        self._lease = task.lease
        endpoint = driver_endpoint(spark, task.settings.takes_port_variables)
        self.server = ClusterServer(endpoint, task.template, lambda: context._jsc is not None, task.lease)
        self._release = weakref.finalize(self, self.server.close)
        self._printer = OutputPrinter(self.server)
        self._nodes: tuple[FeedNode, ...] = ()
        self._feeds = count(1)
        self._unseen: errors.TfosMlError | None = None  # what a stream's thread has raised
        self._closed = False
        self._refuses_batches = False
        self._job: SparkJob | None = None
        self._driver_nodes: DriverNodes | None = None
        self._results: list[results.ResultRow] = []
        try:
            with one_at_a_time:
                self._start(task, program, driver_ranks)
        except BaseException:
            self._abort()
            raise

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
        input_mode: str | int = InputMode.TENSORFLOW,
        log_dir: str | None = None,
        driver_ps_nodes: bool = False,
        master_node: str | None = None,
        reservation_timeout: float = RESERVATION_TIMEOUT,
        queues: Sequence[str] = ("input", "output", "error"),
        eval_node: bool = False,
        release_port: bool = True,
        verbose: int = 1,
    ) -> TFCluster:
        """Start a cluster, and return once all nodes have met.

        Parameters
        ----------
        sc : pyspark.SparkContext or pyspark.sql.SparkSession
            Where; not Spark Connect.
        map_fun : callable
            ``map_fun(args, ctx)``, the TensorFlow main function of every node; ``ctx`` is a :class:`NodeContext`.
        tf_args : object
            Passed to it as it is; a list becomes ``sys.argv`` as well.
        num_executors, num_ps : int
            Number of all nodes, and how many of them are parameter servers.
        tensorboard : bool, default False
            Whether the chief starts TensorBoard.
        input_mode : {InputMode.TENSORFLOW, InputMode.SPARK}
            Whether the nodes read files themselves, or are fed; 0 and 1 stand for the two, as in TensorFlowOnSpark.
        log_dir : str, optional
            Where TensorBoard looks, ``ctx.log_dir``. Default with `tensorboard`: ``tensorboard_<cluster_id>`` in the
            working directory of the chief's executor, which stays; else a directory that goes with the node.
        driver_ps_nodes : bool, default False
            Whether parameter servers run on the driver's host, without a slot of Spark's. ``InputMode.TENSORFLOW``
            only.
        master_node : {"chief", "master"}, optional
            Job name of the chief; without it worker 0 is chief.
        reservation_timeout : float, default 600
            Seconds within which all nodes must have met.
        queues : sequence of str
            Names that ``train(qname=)`` and ``ctx.get_data_feed(qname_in=)`` may use.
        eval_node : bool, default False
            Whether one node is an evaluator.
        release_port : bool, default True
            Whether a node's reserved port is released before `map_fun` is called; else it calls
            ``ctx.release_port()``.
        verbose : {0, 1, 2}, default 1
            What of the nodes' output the driver's stderr shows while the cluster runs: nothing, ``ctx.log``, or all
            they print. In local mode all is on the console anyway.

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
        mode = _input_mode(input_mode)
        _check_arguments(mode, driver_ps_nodes, queues, reservation_timeout)
        check_settings(spark, barrier=False)
        driver_ranks = range(num_ps) if driver_ps_nodes else range(0)
        _check_slots(spark, num_executors, len(driver_ranks), reservation_timeout)
        check_executors(spark, num_executors)
        program = pack_program("map_fun", map_fun, (map_fun, tf_args), {"tf_args": tf_args})
        fed = mode == InputMode.SPARK
        task = NodeTask(
            run_id=uuid.uuid4().hex[:12],
            template=template,
            schema=FeedSchema(()),
            payload=publish(spark, program),
            settings=replace(
                NodeSettings.of_session(spark),
                queues=list(queues) if fed else [],
                release_port=release_port,
                tensorboard=tensorboard,
                tensorboard_port=tensorboard_port(spark),
                takes_port_variables=cls._takes_port_variables,
                log_dir=log_dir,
            ),
            environment={},
            reservation_timeout=reservation_timeout,
            export_dir=None,
            control=None,
            barrier=False,
            lease=lease_timeout(spark),
            graces=graces(spark),
            node_ports=node_ports(spark),
            shares_console=is_local(spark),
            verbose=verbose,
        )
        return cls(spark, task, mode, program, driver_ranks)

    def _start(self, task: NodeTask, program: bytes, driver_ranks: range) -> None:
        task = replace(task, control=self.server.address)
        ranks = [node.rank for node in self._template.nodes if node.rank not in driver_ranks]
        fed = self.input_mode == InputMode.SPARK
        self.nodeRDD: RDD[int] = self.sc.parallelize(ranks, len(ranks))
        start = partial(self.nodeRDD.foreach, partial(start_node, task, fed))
        self._job = SparkJob(self._spark, self._tag, start)
        self._driver_nodes = DriverNodes(task, program, driver_ranks, self.server.host)
        meeting = Gather(self.server, self._template, task.reservation_timeout)
        while meeting.missing():
            meeting.check(waiting_for_slots=False)
            if self._job.wait(POLL_SECONDS) and self._job.error is not None:
                raise_failure(self.server)
                raise typed_error(self._job.error, self._spark) from None
        cards = read_infos([json.loads(card) for _, card in sorted(self.server.met().items())])
        for node, card in zip(self._template.nodes, cards, strict=True):
            where = {"host": card.host, "port": card.port, "pid": card.pid}
            role = {"executor_id": node.rank, "job_name": node.job_name, "task_index": node.task_index}
            self.cluster_info.append({**role, **where})
        self._nodes = tuple(FeedNode(c.rank, c.host, c.feed) for c in cards if c.feed)
        while fed and not self._job.wait(POLL_SECONDS):  # the slots are free once it has ended
            self._check_failed()

    @property
    def cluster_meta(self) -> dict[str, Any]:
        """See the attributes of the class."""
        jobs: dict[str, list[int]] = {}
        for node in self._template.nodes:
            jobs.setdefault(node.job_name, []).append(node.rank)
        return {
            "id": self.cluster_id,
            "cluster_template": jobs,
            "num_executors": self.num_executors,
            "default_fs": self.defaultFS,
            "working_dir": self.working_dir,
        }

    @property
    def address(self) -> ClusterAddress:
        """What another process needs for :meth:`ClusterAddress.request_stop`; holds the token, so keep it secret."""
        return ClusterAddress(**self.server.address)

    # Feeding

    @concise
    def train(
        self, dataRDD: Any, num_epochs: int = 1, feed_timeout: float = FEED_TIMEOUT, qname: str = "input"
    ) -> None:
        """Feed rows to the nodes, and return once they have been read.

        Parameters
        ----------
        dataRDD : pyspark.RDD, pyspark.sql.DataFrame or pyspark.streaming.DStream
            The rows. An RDD or DataFrame is computed once. Each micro-batch of a DStream is fed as it comes; this
            call then returns at once.
        num_epochs : int, default 1
            How often the train functions get the rows; they are kept for that on the nodes. With 0 the rows are
            repeated until all train functions that got some have returned or called ``feed.terminate()``; those of a
            DStream come once.
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
            If Spark could not read all rows.
        RowsLostError
            If the nodes have taken over other rows than Spark has read; some may have been trained on by then.
        """
        self._check_feed(qname)
        _check_seconds("feed_timeout", feed_timeout)
        if not isinstance(num_epochs, int) or isinstance(num_epochs, bool) or num_epochs < 0:
            raise errors.ParamError(
                "num_epochs must be an integer of at least 1, or 0 to repeat the rows until the train functions read "
                f"no further. Received: {num_epochs!r}"
            )
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
        self._check_failed()
        order = self._order(stream, feed_timeout, epochs)
        action = feeding(data, order)
        self.server.open_feed(order.number, {node.rank: node.host for node in self._nodes})
        try:
            fed = self._run_job(action)
            self._check_fed(fed, order.number)
        finally:
            self.server.close_feed(order.number)
        announcement = self.server.announce(
            "segment", stream=stream, number=order.number, epochs=epochs, feed_timeout=feed_timeout
        )
        ranks = tuple(node.rank for node in self._nodes)
        while not self.server.have_read(ranks, announcement, order.number, POLL_SECONDS):
            self._check_failed()

    def _check_fed(self, fed: Mapping[int, int | None], number: int) -> None:
        """Raise unless nodes have taken over just the rows that feed tasks have read, but those that none wanted."""
        deadline = time.monotonic() + self._lease
        committed = self.server.committed(number, POLL_SECONDS)
        while committed is None:
            self._check_failed()
            if time.monotonic() > deadline:
                raise errors.RowsLostError(
                    f"Some nodes have not said within {LEASE_SETTING}={self._lease:g} s whether they have taken over "
                    "rows that were granted to them. Shut the cluster down, and see their logs."
                )
            committed = self.server.committed(number, POLL_SECONDS)
        check_rows({partition: rows for partition, rows in fed.items() if rows is not None}, committed)

    def _order(self, stream: str, feed_timeout: float, epochs: int = 1) -> FeedOrder:
        number = next(self._feeds)
        return FeedOrder(number, stream, self._nodes, self.server.address, epochs, self._lease, feed_timeout)

    def _run_job(self, action: Callable[[], Any]) -> Any:
        job = SparkJob(self._spark, self._tag, action)
        try:
            while not job.wait(POLL_SECONDS):
                if has_failed(self.server):
                    await_end(job, self.server, FEED_END_SECONDS)  # feed tasks hear of it by themselves
                self._check_failed()
            self._check_failed()
        except BaseException:
            job.cancel(CLEANUP_TIMEOUT)
            raise
        if job.error is not None:
            raise typed_error(job.error, self._spark) from None
        return job.result

    def inference(
        self,
        dataRDD: RDD[Any] | DataFrame,
        feed_timeout: float = FEED_TIMEOUT,
        qname: str = "input",
        schema: str = "prediction double",
    ) -> Any:
        """A result for each row, in order; computed when an action asks for it.

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
            Of a DataFrame's results, as DDL; those with names are found by name, others by position.

        Returns
        -------
        pyspark.RDD or pyspark.sql.DataFrame
            Of results; for a DataFrame its own columns and then those of the results.
        """
        self._check_feed(qname)
        _check_seconds("feed_timeout", feed_timeout)
        return inferring(dataRDD, self._order(qname, feed_timeout), schema)

    def _check_feed(self, qname: str) -> None:
        if self.input_mode != InputMode.SPARK:
            raise errors.ClusterConfigError(
                "input_mode=InputMode.TENSORFLOW: the nodes read their data themselves. To feed rows, start the "
                "cluster with input_mode=InputMode.SPARK."
            )
        if qname not in self._queues:
            raise errors.ParamError(f"qname must be one of the queues given to run(), {self._queues}. Got: {qname!r}")
        if self._closed:
            raise errors.ClusterClosedError(
                f"Cluster {self.cluster_id} has ended. Start another one with TFCluster.run()."
            )

    # The end

    def request_stop(self) -> None:
        """Ask for the end of the stream that ``shutdown(ssc)`` waits for."""
        self.server.stop_requested = True

    @concise
    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """End the feed, wait until all map functions have returned, and clean up; again is fine.

        The chief and the workers are waited for as long as they work. Then parameter servers and evaluators hear of it
        (``ctx.should_stop()``, ``ctx.wait()``), and are ended after a grace. ``docs/endings.rst`` has a table.

        Parameters
        ----------
        ssc : pyspark.streaming.StreamingContext or pyspark.sql.streaming.StreamingQuery, optional
            A stream that feeds the cluster: it is waited for first, and ended after :meth:`request_stop`.
        grace_secs : float, default 0
            Seconds that evaluators and parameter servers have left to return, counted from the end of the last chief
            and worker, and not before this call. 0 leaves it to ``spark.tfos_ml.evaluatorGrace`` (60 s) and
            ``spark.tfos_ml.serverGrace`` (5 s). It cuts no map function of a chief or worker short, and is no pause.
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
        ShutdownTimeoutError
            Names the nodes that did not end within `timeout`; they have been ended.
        """
        if self._closed:
            unseen, self._unseen = self._unseen, None
            if unseen is not None:
                raise unseen
            return
        timeout = timeout if timeout > 0 else math.inf
        deadline = time.monotonic() + timeout
        try:
            if ssc is not None:
                self._await_stream(ssc, deadline, timeout)
            self.server.announce("end_of_input")
            self.server.ending = asdict(Limit.of_setting("grace_secs", grace_secs)) if grace_secs > 0 else {}
            self._await_nodes(deadline, timeout)
        except BaseException:
            self._abort()
            raise
        self._results = self.server.results()
        reports = [json.loads(payload) for _, payload in results.joined(self._results, "report")]
        self.summary = {"nodes": reports, "rows": sum(r["rows"] for r in reports)}
        self._close()
        warn_of_ended(reports)

    def _await_nodes(self, deadline: float, timeout: float) -> None:
        """Wait until all nodes have finished; servers and evaluators that are left at the deadline are ended."""
        notice, last_deadline = WaitNotice(), deadline + CLEANUP_TIMEOUT
        while not self.server.are_finished(POLL_SECONDS):
            self._check_failed()
            if time.monotonic() > deadline and self.server.is_trained():
                self.server.ending = asdict(Limit(0, f"timeout={timeout:g}"))
                deadline = last_deadline
            self._check_time(deadline, timeout)
            notice.update(self.server.progress())

    def _check_time(self, deadline: float, allowed: float) -> None:
        if time.monotonic() > deadline:
            raise errors.ShutdownTimeoutError(
                f"{self.server.unfinished()} have not finished within timeout={allowed:g} s and were ended. Let them "
                "return when feed.should_stop() or ctx.should_stop() is true, or raise timeout (-1 for no limit)."
            )

    def _await_stream(self, stream: Any, deadline: float, timeout: float) -> None:
        """Wait for the end of a stream; end it when somebody has asked for that."""
        while not self._has_ended(stream):
            self._check_failed()
            self._check_time(deadline, timeout)
            if self.server.stop_requested:
                self._refuses_batches = True
                stop_stream(stream, deadline)
                return

    def _has_ended(self, stream: Any) -> bool:
        try:
            return has_ended(stream, STREAM_SECONDS)
        except Exception:  # of whatever kind Spark's streams raise
            self._check_failed()  # the failure of a node is the cause
            raise

    def tensorboard_url(self) -> str | None:
        """Where the chief's TensorBoard answers; None if none was asked for."""
        if not self._wants_board:
            return None
        deadline = time.monotonic() + BOARD_TIMEOUT
        while True:
            url: str | None = self.server.progress().get(self._template.chief_rank, {}).get("tensorboard")
            if url is not None:
                return url
            self._check_failed()
            if time.monotonic() > deadline:
                raise errors.ReservationTimeoutError(f"TensorBoard has not started within {BOARD_TIMEOUT:g} s.")
            time.sleep(POLL_SECONDS)

    @property
    def model(self) -> TFModel:
        """After :meth:`shutdown`, what the chief exported with ``ctx.export_saved_model``, with its history."""
        models = [payload for _, payload in results.joined(self._results, "model")]
        return TFModel._from_run(RunResult(self.summary["nodes"], [], models[0] if models else None), [])

    def __enter__(self) -> TFCluster:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            self.shutdown()
        else:
            self._abort()

    def _check_failed(self) -> None:
        """Raise the first failure of a node, and clean up."""
        self.server.check_silence()
        try:
            raise_failure(self.server)
        except errors.TfosMlError:
            self._abort()
            raise

    def _abort(self) -> None:
        """End the nodes, whatever they do."""
        self.server.stop_nodes()
        self._close()

    def _close(self) -> None:
        """Wait until nothing of the nodes is left, then stop listening."""
        if self._closed:
            return
        self._closed = True
        if not self.server.wait_gone(CLEANUP_TIMEOUT):
            logger.warning("Some nodes have not confirmed within %g s that they cleaned up", CLEANUP_TIMEOUT)
        self._release()
        self._printer.close(CLEANUP_TIMEOUT)
        if self._job is not None and not self._job.wait(CLEANUP_TIMEOUT):
            self._job.cancel(CLEANUP_TIMEOUT)
        if self._driver_nodes is not None:
            self._driver_nodes.wait(CLEANUP_TIMEOUT)


def _input_mode(given: Any) -> str:
    """As :class:`InputMode` has it, whose members are numbers in TensorFlowOnSpark."""
    mode = {0: InputMode.TENSORFLOW, 1: InputMode.SPARK}.get(given, "") if type(given) is int else given
    if mode not in (InputMode.SPARK, InputMode.TENSORFLOW):
        raise errors.ParamError(f"input_mode must be InputMode.SPARK or InputMode.TENSORFLOW. Received: {given!r}")
    return str(mode)


def _check_slots(spark: SparkSession, num_executors: int, on_driver: int, timeout: float) -> None:
    name = "num_executors - num_ps" if on_driver else "num_executors"
    check_slots(spark, num_executors - on_driver, timeout, name=name, advice="Lower num_executors")


def _check_arguments(input_mode: str, driver_ps_nodes: bool, queues: Sequence[str], reservation_timeout: float) -> None:
    if driver_ps_nodes and input_mode != InputMode.TENSORFLOW:
        raise errors.ParamError("driver_ps_nodes=True needs input_mode=InputMode.TENSORFLOW")
    if isinstance(queues, str) or not queues or not all(isinstance(name, str) for name in queues):
        raise errors.ParamError(f"queues must be names. Received: {queues!r}")
    _check_seconds("reservation_timeout", reservation_timeout)


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise errors.ParamError(f"{name} must be positive seconds. Received: {value!r}")
