"""One attempt of a fit: runs its cluster, shows its progress, and ends it early if executors come or leave."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.agent.supervisor import run_node
from tfos_ml.common.local_files import LocalFile
from tfos_ml.common.sessions import is_connect
from tfos_ml.common.spark_api import map_in_arrow
from tfos_ml.common.timeouts import LEASE_SECONDS, POLL_SECONDS
from tfos_ml.driver.cluster_size import ClusterSize
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.driver.decommissioning import Decommissioning
from tfos_ml.driver.fit_reports import FitReports
from tfos_ml.driver.progress import Progress, WaitNotice
from tfos_ml.driver.run import Run, gather_lock
from tfos_ml.driver.session_facts import SessionFacts
from tfos_ml.driver.slots import Slots
from tfos_ml.driver.spark_job import SparkJob
from tfos_ml.inference import publishing
from tfos_ml.protocol import results
from tfos_ml.protocol.control_messages import NodeProgress
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.training_position import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tfos_ml.protocol.cluster_template import ClusterTemplate

logger = logging.getLogger(__name__)
OUT_OF_REACH = (
    "Not all nodes have reached this host at %s, so metrics and progress came at the end only. If a firewall, NAT or "
    "container is between them, set spark.tfos_ml.port to a port that it lets through, and %s to an address at which "
    "executors reach this host."
)
LEAVES = (
    "Spark decommissions executor %s, which runs a node of this fit. The training%s goes on, until that executor has "
    "ended. With minClusterSize or maxRestarts it would go on elsewhere."
)


@dataclass(frozen=True)
class AttemptFacts:
    """One attempt of a fit."""

    nodes: int
    saved: Position | None  # the last checkpoint that the driver knows of
    ended: str  # why, "" for the one that has trained to the end
    seconds: float

    def summary(self) -> dict[str, Any]:
        """The entry in the summary of a fitted model."""
        epoch, step = (None, None) if self.saved is None else (self.saved.epoch, self.saved.step)
        return {
            "nodes": self.nodes,
            "epoch": epoch,
            "step": step,
            "ended": self.ended,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class RunResult:
    """What the nodes of a successful run have returned."""

    reports: list[dict[str, Any]]  # one for each node, by rank
    results: list[bytes]  # of data feeds: one Arrow file for each node that has any
    model: LocalFile | None  # the packed SavedModel, unless none was exported or it was published elsewhere
    example: bytes | None = None  # a few rows of the features as an Arrow stream, if they were wanted
    template: ClusterTemplate | None = None  # of the attempt that succeeded
    check_seconds: float = 0.0  # before the first attempt
    job_seconds: float = 0.0  # of the attempt that succeeded
    attempts: tuple[AttemptFacts, ...] = ()  # all, in order

    @property
    def restarts(self) -> int:
        """Number of attempts before the one that succeeded."""
        return len(self.attempts) - 1


class LargerClusterError(Exception):
    """An attempt was ended after a checkpoint, because Spark has slots for more nodes."""

    def __init__(self, size: int):
        super().__init__(f"Spark has slots for {size} nodes")
        self.size = size


class Attempt:
    """One attempt of a fit: a run whose nodes are the tasks of one job, and what is shown and published of it."""

    def __init__(
        self,
        spark: SparkSession,
        facts: SessionFacts,
        task: NodeTask,
        profile: Any,
        size: ClusterSize,
        progress: Progress,
        reports: FitReports,
    ):
        self._control = ControlServer(facts.endpoint, task.template)  # closed with the run
        self._size = size
        self._facts, self._asked = facts, time.monotonic()
        self._decommissioning, self._is_preempted = Decommissioning(spark), False
        self._start: tuple[Position, float] | None = None  # where the training begins, and when
        self.saved: Position | None = None  # the last one
        self._spark = spark
        self._task = task
        self._profile = profile
        self._slots = Slots(task.template.size, task.reservation_timeout)
        self._progress = progress
        progress.begin(task.template.size)
        self._reports = reports
        reports.begin()
        self._waiting = WaitNotice()

    def run(self, df: DataFrame, driver_program: bytes | None) -> RunResult:
        """Run the cluster to its end; raises the first failure, or ``LargerClusterError``."""
        succeeded = False
        try:
            run = Run(self._spark, self._task, self._control, self._progress.write, self._show)
            with self._slots, run:
                began = time.monotonic()
                job = self._watch(run, df, driver_program)
                together = results.merged([run.result(job), self._driver_results(run)])
                result = replace(self._read(together), job_seconds=time.monotonic() - began)
                self._show()
                self._publish(result)
            succeeded = True
            return result
        finally:
            if not succeeded:
                self._note_saved()
                self._discard()

    def _publish(self, result: RunResult) -> None:
        """Publish the model: every node has ended well, and Spark has read all rows."""
        if self._task.export_dir is not None and any(r.get("staged") for r in result.reports):
            publishing.commit(self._task.export_dir, self._task.run_id)

    def _discard(self) -> None:
        """Delete what the chief may have staged. Raises nothing: the failure of the attempt is raised elsewhere."""
        if self._task.export_dir is None:
            return
        try:
            publishing.discard(self._task.export_dir, self._task.run_id)
        except Exception as error:
            logger.warning("Files that an attempt has staged beside exportDir could not be deleted: %s", error)

    def _watch(self, run: Run, df: DataFrame, driver_program: bytes | None) -> SparkJob:
        """Run the job to its end. Its nodes gather first; plain jobs, whose tasks start one by one, gather in turn."""
        nodes = map_in_arrow(
            df, partial(run_node, run.task), results.RESULT_SCHEMA, barrier=self._task.barrier, profile=self._profile
        )
        rows = nodes.toLocalIterator if is_connect(self._spark) else nodes.collect  # both run one job

        def collect() -> results.Results:
            return results.received(rows())

        with nullcontext() if self._task.barrier else gather_lock:
            job = run.start(collect, driver_program)
            run.gather(job, lambda: self._waits_for_slots(job))
        for _ in run.polls(job):
            self._waits_for_slots(job)
            self._grow()
            self._preempt(job)
        if job.error is None and not self._control.nodes.progress():
            host = "spark.tfos_ml.clientHost" if self._task.is_connect_client else "spark.driver.host"
            logger.warning(OUT_OF_REACH, self._control.location, host)
        return job

    @property
    def template(self) -> ClusterTemplate:
        return self._task.template

    @property
    def trained(self) -> Position | None:
        """How far the training is, or was a moment ago."""
        chief = self._chief()
        return None if chief is None else chief.trained

    @property
    def has_progressed(self) -> bool:
        """Whether the attempt has written a checkpoint."""
        return self._start is not None and self.saved != self._start[0]

    def _note_saved(self) -> bool:
        """Take the position of the chief's last checkpoint, first that of its start; returns whether it is new."""
        chief = self._chief()
        if chief is None or chief.saved is None or chief.saved == self.saved:
            return False
        self.saved = chief.saved
        self._start = self._start or (self.saved, time.monotonic())
        return True

    def _grow(self) -> None:
        """Raise ``LargerClusterError`` after a new checkpoint, if a larger cluster would end the training sooner."""
        is_early = time.monotonic() - self._asked < self._facts.grow_seconds
        if not self._note_saved() or not self._size.is_elastic or is_early:
            return
        assert self._start is not None
        assert self.saved is not None
        self._asked = time.monotonic()
        size, seconds = self._size.larger(), self._asked - self._start[1]
        if size and self._size.is_worth_it(size, self._start[0], self.saved, seconds, self._task.settings.epochs):
            raise LargerClusterError(size)

    def _preempt(self, job: SparkJob) -> None:
        """If an executor of the nodes leaves, ask them to write a checkpoint, and to end if another attempt follows."""
        executor = None if self._is_preempted else self._decommissioning.reaches(job)
        if executor is None:
            return
        self._is_preempted = True
        self._control.nodes.preempt()
        if not self._task.settings.ends_when_preempted:
            saves = " saves its state and" if self._task.settings.model_dir else ""
            logger.warning(LEAVES, executor, saves)

    def _waits_for_slots(self, job: SparkJob) -> bool:
        present = {rank for rank in self._control.nodes.present() if rank >= self._task.driver_nodes}
        nodes = self._control.nodes.progress()
        self._slots.update(bool(present) or not job.waits_for_slots(bool(nodes)), have_met=bool(nodes))
        return not nodes or (not self._task.barrier and self._slots.others_hold())  # a barrier has all or none

    def _chief(self) -> NodeProgress | None:
        return self._control.nodes.progress().get(self._task.template.chief_rank)

    def _show(self) -> None:
        """Show what the nodes have reported since the last call."""
        progress = self._control.nodes.progress()
        self._reports.take(self._control.nodes.take_reports())
        self._progress.update(progress)
        self._waiting.update(progress)
        chief = self._chief()
        if chief is not None and chief.tensorboard:
            stays = "" if self._task.settings.log_dir else f" (its files stay in {chief.host}:{chief.log_dir})"
            self._progress.say(f"TensorBoard at {chief.tensorboard}{stays}")

    def _driver_results(self, run: Run) -> results.Results:
        """Results that came directly: large models, and those of nodes on the driver's host, which end last."""
        deadline = time.monotonic() + (self._task.lease or LEASE_SECONDS)
        while not self._control.nodes.have_results(range(self._task.driver_nodes), POLL_SECONDS):
            run.check()
            if time.monotonic() > deadline:
                raise errors.NodeLostError(
                    "Parameter servers on the driver did not end after all other nodes had ended."
                )
        return self._control.nodes.results()

    def _read(self, together: results.Results) -> RunResult:
        template = self._task.template
        reports = self._control.nodes.summaries(together.rows)
        if not reports:
            raise errors.EmptyDataError(
                "The DataFrame has no rows, so no node was started. Check its filters and joins."
            )
        if len(reports) != template.size:
            missing = [n.label for n in template.nodes if n.rank not in reports]
            raise errors.NodeLostError(f"{len(missing)} of {template.size} nodes did not report: {missing}")
        if self._task.schema.columns and not sum(r["rows"] for r in reports.values()):
            raise errors.EmptyDataError("The DataFrame has no rows to train on. Check its filters and joins.")
        answers, examples = (
            [payload for _, payload in results.joined(together.rows, kind)] for kind in ("results", "example")
        )
        return RunResult(
            [reports[rank] for rank in sorted(reports)], answers, together.model, examples[0] if examples else None
        )
