"""``TFParallel``: independent single-node instances of a program, in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle

from tfos_ml import errors
from tfos_ml.agent.spark_task import PlainTask, check_driver, task_info_of
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.common.timeouts import FEED_TIMEOUT, LEASE_SECONDS, RESERVATION_TIMEOUT
from tfos_ml.common.tracebacks import concise
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.driver.executor_check import check_executors
from tfos_ml.driver.preflight import allocates_dynamically, check_settings, check_slots
from tfos_ml.driver.run import Run
from tfos_ml.driver.session_facts import SessionFacts
from tfos_ml.protocol import results
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.codec import decode
from tfos_ml.protocol.grace_periods import warn_of_ended
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.pickling import pack_program
from tfos_ml.stages.constraints import FLAG
from tfos_ml.tfcluster.cluster_arguments import check_map_fun, classic_session
from tfos_ml.tfcluster.start import make_task

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class TFParallel:
    """Independent instances of a function, without a cluster; see :meth:`run`."""

    __module__ = "tfos_ml"

    @staticmethod
    @concise
    def run(
        sc: SparkContext | SparkSession,
        map_fn: Callable[[Any, Any], Any],
        tf_args: Any,
        num_executors: int,
        use_barrier: bool = False,
        verbose: int = 1,
    ) -> list[Any]:
        """Run independent instances of a function, each in its own TensorFlow process.

        Parameters
        ----------
        sc : pyspark.SparkContext or pyspark.sql.SparkSession
            The application whose executors run the instances; not on Spark Connect.
        map_fn : callable
            ``map_fn(args, ctx)``, with ``ctx.worker_num`` the number of the instance and ``ctx.num_workers`` how many
            there are. In all else each is worker 0 of a cluster of its own.
        tf_args : object
            Passed to `map_fn` unchanged. A list also becomes ``sys.argv``.
        num_executors : int
            Number of instances.
        use_barrier : bool, default False
            Whether all instances start at the same time, in a barrier stage, which needs a task slot for each.
            Otherwise as many run at a time as there are slots.
        verbose : {0, 1, 2}, default 1
            Output of the instances that the driver shows on stderr: nothing, lines of ``ctx.log``, or everything.

        Returns
        -------
        list
            The result of each instance, by number. Results must be picklable.

        Warns
        -----
        NodeEndedWarning
            Names an instance whose process did not end by itself after it had returned.

        Raises
        ------
        InvalidInputError
            Before anything starts.
        NotEnoughSlotsError, ClusterConfigError
            Before anything starts, if `use_barrier` and there are fewer slots, or Spark allocates executors
            dynamically.
        NodeError
            The first failure of an instance; the others are ended.

        Examples
        --------
        >>> def map_fn(args, ctx):                                  # doctest: +SKIP
        ...     return sum(range(10)[ctx.worker_num :: ctx.num_workers])
        >>> TFParallel.run(sc, map_fn, None, 3)                     # doctest: +SKIP
        [18, 12, 15]
        """
        spark = classic_session(sc, "TFParallel")
        template = make_template(num_executors)
        check_map_fun(map_fn, "map_fn")
        FLAG.check("use_barrier", use_barrier)
        check_settings(spark, barrier=use_barrier, uses_grpc=False)
        if use_barrier:
            _check_barrier(spark, num_executors)
        check_executors(spark, num_executors)
        facts = SessionFacts.of(spark)
        settings = replace(facts.node_settings, returns=True, instances=num_executors)
        program = pack_program("map_fn", map_fn, (map_fn, tf_args), {"tf_args": tf_args})
        task = make_task(
            spark,
            facts,
            template,
            program,
            settings,
            barrier=use_barrier,
            is_independent=True,
            reservation_timeout=FEED_TIMEOUT,
            verbose=verbose,
        )
        with Run(spark, task, ControlServer(facts.endpoint, template)) as run:
            numbers = spark.sparkContext.parallelize(range(num_executors), num_executors)
            instances = (numbers.barrier() if use_barrier else numbers).mapPartitions(partial(_run_instance, run.task))
            rows: list[results.ResultRow] = run.wait(run.start(instances.collect))
        warn_of_ended(decode(dict, payload) for _, payload in results.joined(rows, "report"))
        return [cloudpickle.loads(payload) for _, payload in results.joined(rows, "results")]


def _check_barrier(spark: SparkSession, num_executors: int) -> None:
    """Raise unless Spark can run so many tasks of a barrier stage at once."""
    if allocates_dynamically(spark):
        raise errors.ClusterConfigError(
            "spark.dynamicAllocation.enabled=true: Spark refuses barrier stages under dynamic allocation "
            "(SPARK-24942). Pass use_barrier=False, or start the session with spark.dynamicAllocation.enabled=false."
        )
    advice = "Lower num_executors, or pass use_barrier=False to run as many at once as there are slots"
    check_slots(spark, num_executors, RESERVATION_TIMEOUT, name="num_executors", advice=advice)


class _SingleTask(PlainTask):
    """A node that is a cluster of its own."""

    def allGather(self, message: str = "") -> list[str]:
        """See :class:`SparkTask`."""
        return [message]


def _run_instance(task: NodeTask, numbers: Iterable[int]) -> Iterator[results.ResultRow]:
    """The function of the job: result rows of one instance."""
    from pyspark import TaskContext

    assert task.control is not None
    check_driver(task.control)
    place = task_info_of(TaskContext.get(), next(iter(numbers)), task.control)
    spark_task = _SingleTask(place, task.control, 1, patience=task.lease or LEASE_SECONDS)
    for batch in supervise(Supervisor(task, spark_task), ()):
        yield from results.read_rows(batch)
