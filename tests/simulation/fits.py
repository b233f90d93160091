"""Fits, with restarts and other sizes: the estimators' ``launch`` and all below it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import virtual_time
from node_tasks import make_task
from played import CONSTANTS, Played
from schedule import Schedule
from simulated_node import STEPS
from simulated_spark import Spark, Stage, barrier

from tfos_ml import errors
from tfos_ml.agent.spark_task import ApartTask, ConnectedTask, PlainTask, SparkTask, TaskInfo, all_reach_driver
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.common.timeouts import LEASE_SECONDS
from tfos_ml.driver.fit_job import launch
from tfos_ml.protocol.cluster_template import ClusterTemplate, make_template
from tfos_ml.protocol.messages import Report
from tfos_ml.protocol.node_task import NodeSettings, NodeTask

FACTS: Any = SimpleNamespace(endpoint="driver", grow_seconds=1.0, draws_stages=False)
"""What the session of a fit says."""


class Store:
    """What is staged beside exportDir, and what has been published there."""

    def __init__(self) -> None:
        self.staged: set[str] = set()
        self.published: list[str] = []

    def stage(self, run_id: str) -> None:
        """The chief of an attempt has copied its model."""
        self.staged.add(run_id)

    def commit(self, run_id: str) -> None:
        """The driver moves it to its place."""
        self.published.append(run_id)


class Fit(Played):
    def __init__(self, schedule: Schedule):
        super().__init__(schedule)
        self.store = Store()
        self.result: Any = None
        self.attempts: list[NodeTask] = []
        self.heard: list[tuple[str, int]] = []  # reports: label, epoch
        self.world.parts.store = self.store
        self.world.parts.check_slots = self._check_slots

    @property
    def is_elastic(self) -> bool:
        """Whether attempts may have fewer nodes."""
        return self.schedule.least < self.schedule.template.size

    def blamed(self) -> str | None:
        """See :class:`Played`; the failure of the first attempt."""
        if len(self.attempts) == 1:
            return super().blamed()
        ended = self.result.attempts[0].ended if self.result is not None else ""
        found = re.match(r"\w+: (\w+:\d+) on ", ended)
        return found[1] if found else None

    def run(self) -> None:
        schedule = self.schedule
        settings = NodeSettings(feed_timeout=20.0, epochs=4)
        task = make_task(
            template=schedule.template, barrier=schedule.is_barrier, export_dir="models", settings=settings, **CONSTANTS
        )
        self.result = launch(
            self.spark,
            FACTS,
            self._frame,
            task,
            templates=make_template if self.is_elastic else None,
            min_nodes=schedule.least,
            max_restarts=schedule.max_restarts,
            verbose=0,
            reported=[self._reported],
        )

    def _reported(self, reports: list[Report]) -> None:
        self.heard += [(report.label, report.epoch) for report in reports]

    def _frame(self, template: ClusterTemplate) -> Any:
        def frame(task: NodeTask) -> Any:
            self.attempts.append(task)
            stage = Stage(self.spark, template.size, task.barrier, lambda *at: self._node(stage, task, *at))
            return SimpleNamespace(collect=stage.run)

        return frame

    def _node(self, stage: Stage, task: NodeTask, rank: int, attempt: int, number: int, host: str) -> Iterator[Any]:
        control, size = task.control, task.template.size
        assert control is not None
        spark_task: SparkTask
        if task.barrier and not all_reach_driver(control, rank, size):
            spark_task, task = ApartTask(barrier(stage, size, rank, host)), replace(task, control=None)
        else:
            make = ConnectedTask if task.barrier else PlainTask
            info = TaskInfo(rank, host, 1, {}, number, attempt)
            spark_task = make(info, control, size, patience=task.lease or LEASE_SECONDS)
        for batch in supervise(Supervisor(task, spark_task), self._rows(virtual_time.process())):  # type: ignore[arg-type]
            yield from (SimpleNamespace(**row) for row in batch.to_pylist())

    def _rows(self, supervisor: virtual_time.Process) -> Iterator[tuple[float, int]]:
        """Rows of a node, each after some seconds."""
        for _ in range(3):
            yield self.world.draw.random(), 10
            if any(claim.rows_are_lost for claim in self.claims if claim.supervisor is supervisor):
                raise errors.InputLostError("a shuffle block is lost")

    def _check_slots(self, spark: Spark, size: int, *args: Any, **named: Any) -> None:
        deadline = self.world.now + 5.0
        while len(spark.free()) < size:
            if self.world.now > deadline:
                raise errors.NotEnoughSlotsError(f"{len(spark.free())} of {size}")
            virtual_time.sleep(1.0)

    def check(self) -> None:
        published = self.store.published
        if self.driver.is_dead:
            self.must(len(published) <= 1, "published twice")
            return
        self.must(len(published) == (self.error is None), f"published {len(published)} times")
        if self.error is None:
            self.must(published == [self.attempts[-1].run_id], "another attempt has published")
            self.must(published[0] in self.store.staged, "published what was not staged")
            self.must(len(self.result.reports) == self.result.template.size, "nodes' reports are missing")
            self.must(len(self.result.attempts) == len(self.attempts), "attempts are not counted")
            self._check_summary()
        self._check_preemptions()
        self._check_reports()

    def _check_preemptions(self) -> None:
        """Attempts end for decommissioned executors only if these run their nodes, and another attempt may follow."""
        if isinstance(self.error, errors.PreemptedError):
            self.must(self.is_elastic or self.schedule.max_restarts, "preempted for good")
        ends = [attempt.ended for attempt in self.result.attempts] if self.result is not None else []
        for task, ended in zip(self.attempts, ends, strict=False):
            hosts = {claim.supervisor.host for claim in self.claims if claim.key[0] == task.run_id}
            is_named = not ended.startswith("PreemptedError") or hosts & self.spark.leaving
            self.must(is_named, "preempted for an executor of others")

    def _check_summary(self) -> None:
        """What the nodes of the last attempt have reported is in the result, and what its chief has was shown."""
        task = self.attempts[-1]
        trained = list(range(self._trainings[task.run_id].first, STEPS))
        for rank in task.template.feed_ranks:
            epochs = [report["epoch"] for report in self.result.reports[rank]["metrics"]]
            self.must(epochs == trained, f"reports of rank {rank} in the result: {epochs}, trained: {trained}")
        label = task.template.nodes[task.template.chief_rank].label
        self.must({(label, epoch) for epoch in trained} <= {*self.heard}, f"reports of {label} were not shown")

    def _check_reports(self) -> None:
        """The driver has heard of each epoch once, in order, and of all that a node believes delivered."""
        for label in {label for label, _ in self.heard}:
            epochs = [epoch for of, epoch in self.heard if of == label]
            self.must(epochs == sorted(set(epochs)), f"reports of {label}: {epochs}")
        for link in self.links:
            run_id, rank = link.of
            task, first = next(task for task in self.attempts if task.run_id == run_id), self._trainings[run_id].first
            label = task.template.nodes[rank].label
            if rank == task.template.chief_rank:  # whose epochs are shown
                count = link.outbox._numbered - len(link.outbox._waiting)
                delivered = {(label, epoch) for epoch in range(first, first + count)}
                self.must(delivered <= {*self.heard}, f"{label} believes {delivered} delivered, heard: {self.heard}")
