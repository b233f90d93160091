"""Starts, watches, cancels and closes the nodes of one cluster, both for fits and for ``TFCluster``.

A failed node reports to the driver's control server, and its Spark task ends without an error. So the control server
knows the first failure; Spark's own error of the job is only used if there is none.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.agent.node_identity import NodeInfo
from tfos_ml.agent.spark_task import TaskInfo
from tfos_ml.agent.standalone_supervisor import StandaloneNode, SupervisorProcess, start_supervisor
from tfos_ml.common.timeouts import CAUSE_SECONDS, CLEANUP_SECONDS, POLL_SECONDS, TASKS_END_SECONDS
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.driver.job_errors import feed_error, node_error
from tfos_ml.driver.progress import write_lines
from tfos_ml.driver.spark_job import SparkJob
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.codec import decode_text
from tfos_ml.protocol.failure import find_failure
from tfos_ml.protocol.node_task import NodeTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)
gather_lock = threading.Lock()
"""Held while nodes gather: two clusters that each hold some slots would wait for each other for ever."""


class Run:
    """One start of all nodes, until they are closed: an attempt of a fit, or a ``TFCluster``.

    As a context manager it is canceled if the body raises, and always closed, and its server with it. `write` writes
    lines of the nodes' output. `show` shows progress; it is called whenever a job is checked, before failures are
    raised, and at the end.
    """

    def __init__(
        self,
        spark: SparkSession,
        task: NodeTask,
        control: ControlServer,
        write: Callable[[list[str]], None] = write_lines,
        show: Callable[[], None] = lambda: None,
    ):
        self.spark = spark
        self.control = control
        self.task = replace(task, control=control.address)
        self._write = write
        self._show = show
        self._tag = f"tfos_ml-{task.run_id}"
        self._on_driver: list[SupervisorProcess] = []  # parameter servers that hold no task slot of Spark's
        self._job: SparkJob | None = None  # whose tasks are the nodes, or start them

    def start(self, action: Callable[[], Any], driver_program: bytes | None = None) -> SparkJob:
        """Start the nodes. Returns the job, run by `action`, whose tasks are the nodes or start them.

        `driver_program` is the payload for nodes of ranks below ``task.driver_nodes``, which run on the driver's host.
        """
        if driver_program is not None:
            payload = Artifact(self.task.payload.name, driver_program)
            task = replace(self.task, payload=payload, shares_console=True, fork_owner=os.getpid())
            for rank in range(task.driver_nodes):
                info = TaskInfo(rank, self.control.host, cpus=1, gpus={})
                self._on_driver.append(start_supervisor(StandaloneNode(task, info, os.getpid(), is_fed=False)))
        self._job = self.start_job(action)
        return self._job

    def start_job(self, action: Callable[[], Any]) -> SparkJob:
        """Start another job for the run, for instance to feed its nodes."""
        return SparkJob(self.spark, self._tag, action)

    # Watching

    def polls(self, job: SparkJob, end_seconds: float = TASKS_END_SECONDS) -> Iterator[None]:
        """Yield every ``POLL_SECONDS`` until a job has ended; raises as :meth:`check`."""
        while not job.wait(POLL_SECONDS):
            self._write_lines()
            self._show()
            self.check(job, end_seconds)
            if not job.wait(0):
                yield

    def check(self, job: SparkJob | None = None, end_seconds: float = TASKS_END_SECONDS) -> None:
        """Raise the first failure of a node, also if its lease has expired; a `job` first gets `end_seconds`."""
        nodes = self.control.nodes
        failure = find_failure(nodes.failure() or "")
        if failure is None:
            self.expire_leases()
            failure = find_failure(nodes.failure() or "")
        elif failure is not None and job is not None:
            if failure.error is errors.InputLostError and job.wait(CAUSE_SECONDS):
                return  # the job's own error has the cause
            nodes.stop()
            job.wait(end_seconds)
        if failure is not None:
            raise failure.to_error()

    def expire_leases(self) -> None:
        """Note which nodes are lost, because they have been silent for their lease; call this often."""
        if self.task.lease is not None:
            self.control.nodes.expire_leases(self.task.lease, self.control.connected_ports)

    def gather(self, job: SparkJob, waits_for_slots: Callable[[], bool] = lambda: False) -> None:
        """Wait until all nodes have met, run apart, or their job has ended; the leases of those that have met begin.

        Waits without limit while `waits_for_slots` returns true. Otherwise raises ``ReservationTimeoutError``, which
        names the missing nodes, after ``task.reservation_timeout``. Also raises as :meth:`check`.
        """
        since = time.monotonic()
        for _ in self.polls(job):
            missing = self.missing()
            if not missing or self.control.all_gather.is_apart:
                break
            if waits_for_slots():
                since = time.monotonic()
            elif time.monotonic() - since > self.task.reservation_timeout:
                raise errors.ReservationTimeoutError(
                    f"{len(missing)} of {self.task.template.size} nodes have not started within reservationTimeout="
                    f"{self.task.reservation_timeout:g} s: {missing}. Check that there are executors for them "
                    "(spark.dynamicAllocation.maxExecutors, other jobs), and that their hosts are not frozen. Raise "
                    "reservationTimeout if executors start slowly."
                )
        infos = [decode_text(NodeInfo, info) for info in self.control.all_gather.first().values()]
        self.control.nodes.begin_leases({info.rank: info.host for info in infos})

    def missing(self) -> list[str]:
        """Labels of the nodes that have not contacted the control server yet."""
        present = self.control.all_gather.first()
        return [node.label for node in self.task.template.nodes if node.rank not in present]

    def wait(self, job: SparkJob, end_seconds: float = TASKS_END_SECONDS) -> Any:
        """Watch a job to its end; returns its result, and raises as :meth:`check` and :meth:`result`."""
        for _ in self.polls(job, end_seconds):
            pass
        return self.result(job)

    def result(self, job: SparkJob) -> Any:
        """The result of a job that has ended; raises the first failure of a node, or the job's as a typed error."""
        if job.error is not None and job is self._job:
            reported = self.control.nodes.failure()
            nodes = self.task.template.nodes[self.task.driver_nodes :]
            hosts = [self.control.nodes.host(node.rank) for node in nodes]
            raise node_error(job.error, self.spark, nodes, hosts, reported) from None
        self.check()  # tasks of failed nodes may well have ended without an error
        if job.error is not None:
            raise feed_error(job.error, self.spark) from None
        return job.result

    # The end

    def cancel(self) -> None:
        """Ask the nodes to stop, and cancel their job."""
        self.control.nodes.stop()
        if self._job is not None:
            self._job.cancel(CLEANUP_SECONDS)

    def close(self) -> None:
        """Wait until the nodes have released everything, at most ``CLEANUP_SECONDS``, and stop listening."""
        self.control.nodes.stop()
        for process in self._on_driver:
            _end(process)
        if not self.control.nodes.wait_gone(CLEANUP_SECONDS):
            logger.warning("Some nodes have not confirmed within %g s that they cleaned up", CLEANUP_SECONDS)
        self._write_lines()
        self.control.close()
        if self._job is not None and not self._job.wait(CLEANUP_SECONDS):
            self._job.cancel(CLEANUP_SECONDS)
        self._show()  # what a node had reported just before it failed

    def _write_lines(self) -> None:
        self._write(self.control.nodes.take_lines())

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if error is not None:
                self.cancel()
        finally:
            self.close()


def _end(process: SupervisorProcess) -> None:
    """Wait for the end of a node's supervisor; kill it if it takes too long: its reaper cleans up."""
    process.close()
    try:
        process.wait(CLEANUP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(CLEANUP_SECONDS)
