"""The driver's side of a run: one barrier job, watched until it ends or is given up.

Slots that another fit of this program holds come free without anybody's doing: ``CrossValidator``
with ``parallelism`` runs several, and those that find no room queue.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.agent.supervisor import run_node
from tfos_ml.common.sessions import is_connect, is_local
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.driver.driver_nodes import DriverNodes
from tfos_ml.driver.gather import Gather, one_at_a_time, raise_failure, raise_silence
from tfos_ml.driver.graceful_end import await_end
from tfos_ml.driver.job_errors import node_error
from tfos_ml.driver.preflight import allocates_dynamically, check_settings, check_slots
from tfos_ml.driver.probe import check_executors
from tfos_ml.driver.progress import Progress
from tfos_ml.driver.restarts import RestartPolicy
from tfos_ml.driver.spark_job import SparkJob
from tfos_ml.inference import publishing
from tfos_ml.protocol import results
from tfos_ml.protocol.addresses import driver_endpoint, node_ports
from tfos_ml.protocol.failure import find_failure
from tfos_ml.protocol.graces import LEASE_SECONDS, WaitNotice
from tfos_ml.protocol.node_task import NodeTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.2
CLEANUP_TIMEOUT = 10.0
CAUSE_SECONDS = 5.0  # within which Spark tells why it could not read a node's rows
_attempts: list[_Attempt] = []  # that are running now


@dataclass(frozen=True)
class RunResult:
    """What the nodes of a successful run brought home.

    Attributes
    ----------
    reports : list of dict
        One a node, by rank.
    results : list of bytes
        What the data feeds answered, one Arrow file a node that did.
    model : bytes or None
        The packed SavedModel, unless none was exported or it was published elsewhere.
    example : bytes or None
        A few rows of the features as an Arrow stream, if they were asked for.
    """

    reports: list[dict[str, Any]]
    results: list[bytes]
    model: bytes | None
    example: bytes | None = None


def launch(
    spark: SparkSession,
    rows: Callable[[], DataFrame],
    task: NodeTask,
    *,
    profile: Any = None,
    max_restarts: int = 0,
    verbose: int = 1,
    reported: Callable[[list[dict[str, Any]]], None] = lambda reports: None,
    driver_program: bytes | None = None,
) -> RunResult:
    """Run a cluster to its end.

    Parameters
    ----------
    spark : SparkSession
        Where.
    rows : callable
        Makes the DataFrame whose partition *i* goes to node *i*; called once an attempt.
    task : NodeTask
        What the nodes do.
    profile : pyspark.resource.ResourceProfile, optional
        CPUs and GPUs of a node; default those of Spark's tasks.
    max_restarts : int, default 0
        How often a run that failed on its nodes is begun again.
    verbose : int, default 1
        As of :class:`Progress`.
    reported : callable, optional
        Hears of the nodes' reports as they come, if they can come early.
    driver_program : bytes, optional
        The payload, for nodes of ranks below ``task.first_rank``, which run on the driver's host.

    Raises
    ------
    NotEnoughSlotsError, ClusterConfigError
        Before any job starts.
    NodeError
        The first failure that happened.
    EmptyDataError
        If no row reached any node.
    """
    check_settings(spark)
    shares_console = not is_connect(spark) and is_local(spark)
    barrier = not allocates_dynamically(spark) and not task.first_rank
    task = replace(task, barrier=barrier, node_ports=node_ports(spark), shares_console=shares_console)
    task = replace(task, verbose=verbose)
    check_slots(spark, task.template.size - task.first_rank, task.reservation_timeout, profile)
    check_executors(spark, task.template.size)
    policy = RestartPolicy(max_restarts)
    while True:
        settings = replace(task.settings, restart_count=policy.restarts)
        attempt = _Attempt(
            spark,
            replace(task, run_id=uuid.uuid4().hex[:12], settings=settings),
            profile,
            verbose,
            reported,
            driver_program,
        )
        try:
            return attempt.run(rows())
        except errors.TfosMlError as error:
            decision = policy.decide(error)
            if not decision.restart:
                raise
            logger.warning("%s", decision.notice)


class _Attempt:
    """One barrier job."""

    def __init__(
        self,
        spark: SparkSession,
        task: NodeTask,
        profile: Any,
        verbose: int,
        reported: Callable[[list[dict[str, Any]]], None],
        driver_program: bytes | None,
    ):
        self._spark = spark
        self._task = task
        self._profile = profile
        self._reported = reported
        self.holds_slots = False
        self._size = task.template.size
        self._tag = f"tfos_ml-{task.run_id}"
        draws_bar = not is_connect(spark) and spark.conf.get("spark.ui.showConsoleProgress", "false") == "true"
        self._progress = Progress(verbose, self._size, task.settings.epochs, draws_bar)
        self._waiting = WaitNotice()
        self._control: ControlServer | None = None
        self._job: SparkJob | None = None
        self._driver_program = driver_program
        self._driver_nodes: DriverNodes | None = None

    def run(self, df: DataFrame) -> RunResult:
        succeeded = False
        _attempts.append(self)
        try:
            if not is_connect(self._spark):
                self._control = ControlServer(driver_endpoint(self._spark))
            try:
                job = self._collect(df)
            except BaseException:
                self._cancel()
                raise
            if job.error is not None:
                reported = self._control.failure() if self._control is not None else None
                raise node_error(job.error, self._spark, self._task.template, reported) from None
            if self._control is not None:
                raise_failure(self._control)  # tasks of failed nodes may well have ended without an error
            result = self._read([*job.result, *self._driver_results()])
            self._publish(result)
            succeeded = True
            return result
        finally:
            _attempts.remove(self)
            self._progress.close(succeeded)
            self._close_control()
            if not succeeded:
                self._discard()

    def _publish(self, result: RunResult) -> None:
        """Only now, as every node has ended well, and Spark has read all rows, does the model count."""
        if self._task.export_dir is not None and any(r.get("staged") for r in result.reports):
            publishing.commit(self._task.export_dir, self._task.run_id)

    def _discard(self) -> None:
        """Delete what the chief may have staged; the attempt has failed, and that is what is raised."""
        if self._task.export_dir is None:
            return
        try:
            publishing.discard(self._task.export_dir, self._task.run_id)
        except Exception as error:
            logger.warning("What an attempt staged beside exportDir could not be deleted: %s", error)

    def _collect(self, df: DataFrame) -> SparkJob:
        """Run the job to its end; nodes of a plain job gather first, and no other's meanwhile."""
        if self._task.barrier or self._control is None:
            self._job = self._start(df)
            self._watch(self._job)
            return self._job
        with one_at_a_time:
            self._job = self._start(df)
            meeting = Gather(self._control, self._task.template, self._task.reservation_timeout)
            self._watch(self._job, meeting, while_missing=True)
        self._watch(self._job, meeting)
        return self._job

    def _start(self, df: DataFrame) -> SparkJob:
        address = self._control.address if self._control is not None else None
        task = replace(self._task, control=address)
        if self._driver_program is not None and self._control is not None:
            ranks = range(task.first_rank)
            self._driver_nodes = DriverNodes(task, self._driver_program, ranks, self._control.host)
        job = df.mapInArrow(
            partial(run_node, task),
            results.RESULT_SCHEMA,
            barrier=self._task.barrier,
            profile=self._profile,
        )
        return SparkJob(self._spark, self._tag, job.collect)

    def _cancel(self) -> None:
        if self._control is not None:
            self._control.stop_nodes()
        if self._job is not None:
            self._job.cancel(CLEANUP_TIMEOUT)

    def _watch(self, job: SparkJob, meeting: Gather | None = None, while_missing: bool = False) -> None:
        """Show progress until the job, or the meeting, has ended; give it up if it waits too long for slots."""
        idle_since = time.monotonic()
        while not job.wait(POLL_SECONDS):
            nodes = self._show_progress()
            self._check_failed(job)
            if job.wait(0):
                break
            self.holds_slots = bool(nodes) or job.is_running_tasks()
            if meeting is not None:
                meeting.check(waiting_for_slots=not nodes or self._others_hold_slots())
                if while_missing and not meeting.missing():
                    return
            if self.holds_slots or self._others_hold_slots():
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > self._task.reservation_timeout:
                raise errors.ReservationTimeoutError(
                    f"No task of the fit has run for reservationTimeout={self._task.reservation_timeout:g} s: its "
                    f"{self._size} nodes wait for {self._size} free task slots, which other jobs hold or the cluster "
                    "does not have. Wait for those jobs, cancel them, lower clusterSize, or raise reservationTimeout."
                )
        self._show_progress()

    def _check_failed(self, job: SparkJob) -> None:
        """Raise what a node has reported, or that one is silent, though the job goes on."""
        if self._control is None:
            return
        told = find_failure(self._control.failure() or "")
        if told is not None and told.error is errors.InputLostError and job.wait(CAUSE_SECONDS):
            return  # the job's own error has the cause
        if told is not None:
            await_end(job, self._control)
        raise_failure(self._control)
        raise_silence(self._control, self._task.template, self._task.lease)

    def _others_hold_slots(self) -> bool:
        return any(attempt.holds_slots for attempt in list(_attempts) if attempt is not self)

    def _show_progress(self) -> int:
        """Show what the nodes have reported; returns how many have."""
        if self._control is None:
            return 0
        progress = self._control.progress()
        reports = self._control.take_reports()
        self._progress.update(progress, reports)
        self._progress.write(self._control.take_lines())
        self._waiting.update(progress)
        if reports:
            self._reported(reports)
        self._show_board(progress.get(self._task.template.chief_rank, {}))
        return len(progress)

    def _show_board(self, chief: dict[str, Any]) -> None:
        if chief.get("tensorboard"):
            stays = "" if self._task.settings.log_dir else f" (its files stay in {chief['host']}:{chief['log_dir']})"
            self._progress.say(f"TensorBoard at {chief['tensorboard']}{stays}")

    def _close_control(self) -> None:
        """Wait until nothing of the nodes is left, then stop listening."""
        if self._control is None:
            return
        self._control.stop_nodes()
        if self._driver_nodes is not None:
            self._driver_nodes.wait(CLEANUP_TIMEOUT)
        if not self._control.wait_gone(CLEANUP_TIMEOUT):
            logger.warning("Some nodes have not confirmed within %g s that they cleaned up", CLEANUP_TIMEOUT)
        self._progress.write(self._control.take_lines())
        self._control.close()

    def _driver_results(self) -> list[results.ResultRow]:
        """What nodes on the driver's host bring home, which end soon after all others."""
        if self._control is None or self._driver_nodes is None:
            return []
        deadline = time.monotonic() + (self._task.lease or LEASE_SECONDS)
        while not self._control.have_results(range(self._task.first_rank), POLL_SECONDS):
            raise_failure(self._control)
            if time.monotonic() > deadline:
                raise errors.NodeLostError("Parameter servers on the driver have not ended after all other nodes had.")
        return self._control.results()

    def _read(self, rows: list[Any]) -> RunResult:
        reports = {rank: json.loads(payload) for rank, payload in results.joined(rows, "report")}
        for report in reports.values():
            self._progress.write(report.pop("lines", []))
        if not reports:
            raise errors.EmptyDataError(
                "The DataFrame has no rows, so no node was started. Check its filters and joins."
            )
        if len(reports) != self._size:
            missing = [n.label for n in self._task.template.nodes if n.rank not in reports]
            raise errors.NodeLostError(f"{len(missing)} of {self._size} nodes did not report: {missing}")
        if self._task.schema.columns and not sum(r["rows"] for r in reports.values()):
            raise errors.EmptyDataError("The DataFrame has no rows to train on. Check its filters and joins.")
        models = [payload for _, payload in results.joined(rows, "model")]
        answers = [payload for _, payload in results.joined(rows, "results")]
        examples = [payload for _, payload in results.joined(rows, "example")]
        return RunResult(
            [reports[rank] for rank in sorted(reports)],
            answers,
            models[0] if models else None,
            examples[0] if examples else None,
        )
