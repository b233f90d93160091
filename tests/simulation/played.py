"""A schedule as it is played: the faults strike, and at the end some things must hold, whatever has happened."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from schedule import HEARTBEAT, LEASE, RESERVATION, Fault, Schedule
from simulated_network import Network
from simulated_node import Claim, Training
from simulated_spark import Spark
from virtual_time import Process, World

from tfos_ml import errors
from tfos_ml.protocol.grace_periods import GracePeriods
from tfos_ml.protocol.node_task import NodeTask

END_SECONDS = 1_500.0  # a run with all its attempts ends by then
LEFT_SECONDS = 200.0  # and then all its processes
CONSTANTS = {
    "lease": LEASE, "heartbeat_timeout": HEARTBEAT, "reservation_timeout": RESERVATION, "control": None,
    "grace_periods": GracePeriods(worker=6.0, server=1.0, evaluator=4.0),
}  # fmt: skip


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)


class Violation(AssertionError):  # noqa: N818
    """A schedule in which something did not hold; its text has the seed."""


class Played:
    """One run; :meth:`play` raises ``Violation``."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.world = World(schedule.seed)
        self.driver = Process("driver", "driver")
        self.spark = Spark(schedule.hosts, schedule.slots, schedule.replaced, schedule.failures)
        self.claims: list[Claim] = []
        self.links: list[Any] = []
        self.error: BaseException | None = None
        self.struck: list[tuple[str, set[str]]] = []  # faults that have hit, and the labels of their nodes
        self._trainings: dict[str, Training] = {}
        self._has_ended = False
        self.world.parts = SimpleNamespace(
            network=Network(schedule.weather), claims=self.claims, links=self.links, training_of=self._training_of,
            spark=self.spark, saved=0,
        )  # fmt: skip

    def play(self) -> Played:
        """Play it to its end; the package logs nothing meanwhile."""
        with self.world, _silent():
            self.world.start(self.driver, "program", self._main)
            if self.schedule.late is not None:
                self.world.at(self.schedule.late, self.spark.add, self.spark.executors.pop())
            for fault in self.schedule.faults:
                self.world.at(fault.at, self._strike, fault)
            ended = self.world.run(lambda: self._has_ended or self.driver.is_dead, END_SECONDS)
            self.must(ended, "the run has not ended")
            left = not self.world.run(self._is_nothing_left, LEFT_SECONDS)
            self.must(not left, f"processes are left: {[p.name for p in self._processes() if not p.is_dead]}")
            for name, crash in self.world.crashes:
                self.must(False, f"{name} has crashed with {crash!r}")
            if not isinstance(self.error, errors.TfosMlError | None) and self._nodes_were_heard_of():
                self.must(False, "the error is not typed")
            self.check()
            if not self.driver.is_dead:
                if not self.struck and self.schedule.is_calm and self.schedule.late is None:
                    self.must(self.error is None, "no fault, and an error")
                self._check_culprit()
        return self

    def _main(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.error = error
        self.world.note("run", "ends", type(self.error).__name__)
        self._has_ended = True

    def run(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """What must hold at the end."""
        raise NotImplementedError

    def must(self, holds: object, what: str) -> None:
        """Raise ``Violation`` if something does not hold."""
        if not holds:
            error = f"{type(self.error).__name__}: {self.error}" if self.error else "no error"
            raise Violation(f"seed {self.schedule.seed}: {what}. {error}. {self.schedule}")

    def _training_of(self, task: NodeTask) -> Training:
        labels = [task.template.nodes[rank].label for rank in task.template.feed_ranks]
        return self._trainings.setdefault(task.run_id, Training(labels, self.schedule.behavior, self.world.parts.saved))

    def _processes(self) -> list[Process]:
        children = [claim.child.process for claim in self.claims if claim.child is not None]
        return [*children, *(claim.supervisor for claim in self.claims)]

    def _nodes_were_heard_of(self) -> bool:
        """Whether the latest attempt has got so far; else Spark's own error may be all that is known."""
        last = self.claims[-1].key[0] if self.claims else ""
        return any(link.answer is not None for link in self.links if link.of[0] == last)

    def _is_nothing_left(self) -> bool:
        return all(process.is_dead for process in self._processes())

    # Faults

    def _strike(self, fault: Fault) -> None:
        if self._has_ended or self.driver.is_dead:
            return
        hit = self._hit(fault)
        if hit is not None:
            self.world.note("fault", fault.kind, fault.rank)
            self.struck.append((fault.kind, hit))

    def _hit(self, fault: Fault) -> set[str] | None:
        """Let a fault happen; returns the labels of the nodes that it hits, None if there is nothing to hit."""
        if fault.kind == "driver killed":
            self.driver.end(-9)
            return set()
        if fault.kind == "executor leaves":
            executors = self.spark.executors  # the last ones may have no node
            if executors:
                host = executors[-1 - fault.rank % len(executors)].host
                self.spark.leaving.add(host)
                self.world.at(3.0, self._lose_once_idle, host)  # its blocks are moved first
            return set()
        if fault.kind == "driver stands":
            self.driver.stand(fault.seconds)
            return set()
        claim = next((one for one in reversed(self.claims) if one.key[1] == fault.rank), None)
        if claim is None or claim.supervisor.is_dead:
            return None
        child, host = claim.child, claim.supervisor.host
        if fault.kind.startswith("process") and (child is None or child.process.is_dead):
            return None
        hit = [one for one in self.claims if one.supervisor.host == host and not one.supervisor.is_dead]
        tasks = {task.process for executor in self.spark.executors if executor.host == host for task in executor.tasks}
        match fault.kind:
            case "process killed":
                child.process.end(-9)
            case "process fails":
                child.fail()
            case "process stands":
                child.process.stand(fault.seconds + HEARTBEAT)
            case "supervisor killed":
                claim.supervisor.end(-9)
            case "supervisor stands":
                claim.stand(fault.seconds)
            case "rows lost":
                claim.rows_are_lost = True
            case "host cut off":
                self.spark.cut(host, fault.seconds)
            case "host lost":
                self._lose(host)
        if not fault.kind.startswith("host"):
            return {claim.member.run_role.label}
        are_known = tasks <= {one.supervisor for one in hit}  # else it has hit tasks that are not yet, or no, nodes
        return {one.member.run_role.label for one in hit} if are_known else set()

    def _lose_once_idle(self, host: str) -> None:
        """An executor that is decommissioned ends when its tasks have; no new ones come."""
        if any(executor.tasks for executor in self.spark.executors if executor.host == host):
            self.world.at(1.0, self._lose_once_idle, host)
        else:
            self._lose(host)

    def _lose(self, host: str) -> None:
        executors = [executor for executor in self.spark.executors if executor.host == host]
        for executor in executors:
            executor.is_dead = True
            for task in executor.tasks:
                task.process.end(-9)
        for claim in self.claims:
            if claim.supervisor.host == host:
                for process in (claim.reaper, claim.supervisor, claim.child and claim.child.process):
                    if process is not None:
                        process.end(-9)
        self.world.at(3 * self.world.draw.random(), self.spark.lose, host, "ExecutorLostFailure (executor exited)")

    def blamed(self) -> str | None:
        """The label of the node that the first failure names, if it names one."""
        error = self.error
        return f"{error.role}:{error.index}" if isinstance(error, errors.NodeError) and error.role else None

    def _check_culprit(self) -> None:
        """With one fault and a network that works, the node that it has hit is named, not one that broke with it."""
        if len(self.struck) == 1 and self.schedule.is_calm:
            kind, hit = self.struck[0]
            blamed = self.blamed()
            self.must(not hit or blamed is None or blamed in hit, f"{kind} on {hit}, and {blamed} is blamed")
