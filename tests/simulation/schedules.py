"""Schedules of fits: from a seed, the cluster, the faults and when they come; and what must hold at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import virtual_time
from node_tasks import make_task
from simulated_network import Network, Weather
from simulated_node import Behavior, Claim, Training
from simulated_spark import Spark, Stage
from virtual_time import Process, World

from tfos_ml import errors
from tfos_ml.agent.spark_task import BarrierTask, PlainTask, TaskInfo
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.driver.fit_job import launch
from tfos_ml.protocol.cluster_template import ClusterTemplate, make_template
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.settings import NodeSettings
from tfos_ml.protocol.shutdown_timeouts import LEASE_SECONDS, ShutdownTimeouts

HEARTBEAT, LEASE, RESERVATION = 20.0, 15.0, 30.0
END_SECONDS = 1_500.0  # a fit with all its attempts ends by then
LEFT_SECONDS = 200.0  # and then all its processes

logging.disable(logging.CRITICAL)


class Violation(AssertionError):  # noqa: N818
    """A schedule in which something did not hold; its text has the seed."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong, when, and on which node."""

    kind: str
    at: float
    rank: int
    seconds: float = 0.0


KINDS = (
    "process killed", "process fails", "process stands", "supervisor killed", "supervisor stands", "host lost",
    "host cut off", "driver stands",
)  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """One fit, its network and its faults."""

    seed: int
    template: ClusterTemplate
    is_barrier: bool
    max_restarts: int
    hosts: int
    slots: int
    replaced: float
    weather: Weather
    behavior: Behavior
    faults: tuple[Fault, ...]

    @property
    def is_calm(self) -> bool:
        """Whether each message arrives soon."""
        return not (self.weather.lost or self.weather.slow)


def drawn(seed: int, largest: int = 5) -> Schedule:
    """The schedule of a seed."""
    world = World(seed)
    draw = world.draw
    size = draw.choice([1, 2, 2, 3, 3, 4, largest])
    num_ps = int(size > 2 and draw.random() < 0.2)
    named = draw.choice([None, None, "chief"])
    evaluator = size > num_ps + 2 and draw.random() < 0.2
    template = make_template(size, num_ps, named, evaluator)
    behavior = Behavior(
        step_seconds=draw.choice([0.5, 1.0, 4.0]),
        breaks_after=draw.choice([0.5, 2.0, 8.0]),
        hangs=draw.choice([0.0, 0.3]),
        aborts=draw.choice([0.0, 0.3]),
        barrier=draw.random() < 0.2,
        late_seconds=draw.choice([0.0, 5.0]),
        checkpoints=draw.random() < 0.7,
    )
    calm = Weather(doubled=draw.choice([0.0, 0.1]))
    bad = Weather(draw.choice([0.0, 0.02, 0.1]), draw.choice([0.0, 0.2]), draw.choice([0.0, 0.1]), draw.choice([1, 7]))
    count = draw.choice([0, 1, 1, 1, 2, 3])
    faults = tuple(
        Fault(
            draw.choice(KINDS), draw.choice([4.0, 12.0]) * draw.random(), draw.randrange(size),
            draw.choice([1.0, 8.0, 40.0]) * draw.random(),
        )
        for _ in range(count)
    )  # fmt: skip
    slots = draw.choice([1, 1, 2])
    hosts = -(-size // slots) + draw.choice([0, 0, 1])
    return Schedule(
        seed, template, draw.random() < 0.5, draw.choice([0, 0, 1, 2]), hosts, slots, draw.choice([0.3, 1.0]),
        draw.choice([calm, bad]), behavior, faults,
    )  # fmt: skip


class Store:
    """What is staged beside exportDir, and what has been published there."""

    def __init__(self) -> None:
        self.staged: list[str] = []
        self.published: list[str] = []

    def stage(self, run_id: str) -> None:
        self.staged.append(run_id)

    def commit(self, run_id: str) -> None:
        self.published.append(run_id)

    def discard(self, run_id: str) -> None:
        pass


class Played:
    """A schedule as it goes; :meth:`play` raises ``Violation``."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.world = World(schedule.seed)
        self.driver = Process("driver", "driver")
        self.spark = Spark(schedule.hosts, schedule.slots, schedule.replaced)
        self.store = Store()
        self.claims: list[Claim] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.attempts: list[str] = []
        self.struck: list[tuple[str, set[str]]] = []  # faults that have hit, and the labels of their nodes
        self._trainings: dict[str, Training] = {}
        self._has_ended = False
        self.world.parts = SimpleNamespace(
            network=Network(schedule.weather), claims=self.claims, training_of=self._training_of, store=self.store,
            leaving=lambda: False, check_slots=self._check_slots,
        )  # fmt: skip

    def play(self) -> Played:
        """Run it to its end."""
        with self.world:
            self.world.start(self.driver, "fit", self._fit)
            for fault in self.schedule.faults:
                self.world.at(fault.at, self._strike, fault)
            ended = self.world.run(lambda: self._has_ended, END_SECONDS)
            self._must(ended, "the fit has not ended")
            self._must(self.world.run(self._is_nothing_left, LEFT_SECONDS), "processes are left")
            self._check()
        return self

    def _fit(self) -> None:
        schedule = self.schedule
        task = make_task(
            template=schedule.template, control=None, barrier=schedule.is_barrier, lease=LEASE, export_dir="models",
            heartbeat_timeout=HEARTBEAT, reservation_timeout=RESERVATION, settings=NodeSettings(feed_timeout=20.0),
            shutdown_timeouts=ShutdownTimeouts(worker=6.0, server=1.0, evaluator=4.0),
        )  # fmt: skip
        try:
            self.result = launch(
                self.spark, lambda template: self._frame, task, max_restarts=schedule.max_restarts, verbose=0
            )  # fmt: skip
        except Exception as error:
            self.error = error
        self.world.note("fit", "ends", type(self.error).__name__, len(self.attempts))
        self._has_ended = True

    def _frame(self, task: NodeTask) -> Any:
        """The DataFrame of an attempt: what its ``collect`` runs."""
        self.attempts.append(task.run_id)
        stage = Stage(self.spark, task.template.size, task.barrier, lambda *at: self._node(stage, task, *at))
        return SimpleNamespace(collect=stage.run)

    def _node(self, stage: Stage, task: NodeTask, rank: int, attempt: int, number: int, host: str) -> Iterator[Any]:
        if task.barrier:
            spark_task: Any = BarrierTask(_Barrier(stage, task.template.size, rank, host), task.control)
        else:
            assert task.control is not None
            info = TaskInfo(rank, host, 1, {}, number, attempt)
            spark_task = PlainTask(info, task.control, task.template.size, patience=task.lease or LEASE_SECONDS)
        draw = self.world.draw
        for batch in supervise(Supervisor(task, spark_task), [(draw.random(), 10) for _ in range(3)]):
            yield from (SimpleNamespace(**row) for row in batch.to_pylist())

    def _training_of(self, task: NodeTask) -> Training:
        labels = [task.template.nodes[rank].label for rank in task.template.feed_ranks]
        return self._trainings.setdefault(task.run_id, Training(labels, self.schedule.behavior))

    def _check_slots(self, spark: Spark, size: int, *args: Any, **named: Any) -> None:
        deadline = self.world.now + 15.0
        while len(spark.free()) < size:
            if self.world.now > deadline:
                raise errors.NotEnoughSlotsError(f"{len(spark.free())} of {size}")
            virtual_time.sleep(1.0)

    def _is_nothing_left(self) -> bool:
        return all(claim.child is None or claim.child.process.is_dead for claim in self.claims) and all(
            claim.supervisor.is_dead for claim in self.claims
        )

    # Faults

    def _strike(self, fault: Fault) -> None:
        if self._has_ended:
            return
        if fault.kind == "driver stands":
            self.driver.stand(fault.seconds)
            self.struck.append((fault.kind, set()))
            return
        claim = self._victim(fault.rank)
        if claim is None or claim.supervisor.is_dead:
            return
        child = claim.child
        if fault.kind.startswith("process") and (child is None or child.process.is_dead):
            return
        self.world.note("fault", fault.kind, fault.rank)
        host = claim.supervisor.host
        hit = [one for one in self.claims if one.supervisor.host == host and not one.supervisor.is_dead]
        hit = hit if fault.kind.startswith("host") else [claim]
        self.struck.append((fault.kind, {one.member.node.label for one in hit}))
        match fault.kind:
            case "process killed":
                child.process.end(-9)
            case "process fails":
                child.fail("the train function raised")
            case "process stands":
                child.process.stand(fault.seconds + HEARTBEAT)
            case "supervisor killed":
                claim.supervisor.end(-9)
            case "supervisor stands":
                claim.stand(fault.seconds)
            case "host cut off":
                self.spark.cut(host, fault.seconds)
            case "host lost":
                self._lose(host)

    def _victim(self, rank: int) -> Claim | None:
        return next((one for one in reversed(self.claims) if one.key[1] == rank), None)

    def _lose(self, host: str) -> None:
        for executor in self.spark.executors:
            executor.is_dead |= executor.host == host
        for claim in self.claims:
            if claim.supervisor.host == host:
                for process in (claim._reaper, claim.supervisor, claim.child and claim.child.process):
                    if process is not None:
                        process.end(-9)
        self.world.at(3 * self.world.draw.random(), self.spark.lose, host, "ExecutorLostFailure (executor exited)")

    # What must hold

    def _must(self, holds: object, what: str) -> None:
        if not holds:
            error = f"{type(self.error).__name__}: {self.error}" if self.error else "no error"
            raise Violation(f"seed {self.schedule.seed}: {what}. {error}. {self.schedule}")

    def _check(self) -> None:
        error, store = self.error, self.store
        for name, crash in self.world.crashes:
            self._must(False, f"{name} has crashed with {crash!r}")
        self._must(error is None or isinstance(error, errors.TfosMlError), "the error is not typed")
        self._must(len(store.published) == (error is None), f"published {len(store.published)} times")
        if error is None:
            self._must(store.published == self.attempts[-1:], "another attempt has published")
            self._must(len(self.result.reports) == self.result.template.size, "reports are missing")
            self._must(self.result.attempts[-1].ended == "", "the last attempt has not ended well")
        if not self.struck and self.schedule.is_calm:
            self._must(error is None, "no fault, and an error")
        self._check_culprit()

    def _check_culprit(self) -> None:
        """With one fault and a network that works, the error names the node that the fault has hit."""
        if len(self.struck) != 1 or not self.schedule.is_calm or self.schedule.max_restarts:
            return
        kind, hit = self.struck[0]
        if hit and isinstance(self.error, errors.NodeError):
            named = f"{self.error.role}:{self.error.index}"
            self._must(named in hit, f"{kind} on {hit}, and {named} is blamed")


class _Barrier:
    """A ``BarrierTaskContext``."""

    def __init__(self, stage: Stage, size: int, rank: int, host: str):
        self._stage, self._size, self._rank, self._host = stage, size, rank, host
        self._number = 0

    def partitionId(self) -> int:
        return self._rank

    def getTaskInfos(self) -> list[Any]:
        return [SimpleNamespace(address=f"{self._host}:0")] * self._size

    def cpus(self) -> int:
        return 1

    def resources(self) -> dict[str, Any]:
        return {}

    def attemptNumber(self) -> int:
        return 0

    def allGather(self, message: str = "") -> list[str]:
        self._number += 1
        return self._stage.all_gather(self._number, self._rank, message)
