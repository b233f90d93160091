"""The processes of a node that are not simulated code but play a part: TensorFlow process, reaper, rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import virtual_time
from virtual_time import Condition, Process, SimpleQueue

from tfos_ml import errors
from tfos_ml.agent import reaper
from tfos_ml.agent.feeder import RowSource
from tfos_ml.agent.node_resources import HEARTBEATS, NodeResources
from tfos_ml.protocol import messages
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.training_position import Position

STEPS = 4
CLEANUP_TIMEOUT = 10.0


@dataclass
class Behavior:
    """How the train functions of a fit behave, besides faults."""

    step_seconds: float = 1.0
    breaks_after: float = 2.0  # a collective, at most so long after a member has gone
    hangs: float = 0.2  # probability that it never breaks
    aborts: float = 0.2  # that the process then ends by SIGABRT, without a word
    barrier: bool = False  # whether they meet in ctx.barrier
    late_seconds: float = 0.0  # that nodes which do not train go on after the end, at most
    checkpoints: bool = True
    lingers: float = 0.0  # probability that a process does not end when its train function has ended


class Training:
    """What the TensorFlow processes of one attempt know of each other: who is at which step."""

    def __init__(self, labels: list[str], behavior: Behavior, first: int):
        self.behavior, self.first = behavior, first
        self.at = dict.fromkeys(labels, -1)
        self.gone: set[str] = set()
        self.last = STEPS  # step after which it ends
        self.changed = Condition()

    def meet(self, label: str, step: int) -> bool:
        """Wait until all are at a step; False if one has gone before."""
        self.at[label] = step
        self.changed.notify_all()
        self.changed.wait_for(lambda: self._is_complete(step) or self.gone)
        if self._is_complete(step):
            return True
        draw = virtual_time.now_in.draw
        virtual_time.sleep(1e9 if draw.random() < self.behavior.hangs else self.behavior.breaks_after * draw.random())
        return False

    def _is_complete(self, step: int) -> bool:
        return all(at >= step for at in self.at.values())

    def lose(self, label: str) -> None:
        """A process has ended, or cannot be reached."""
        if self.at.get(label, STEPS) < STEPS:
            self.gone.add(label)
            self.changed.notify_all()


class Child:
    """A TensorFlow process, and the supervisor's end of its channel."""

    pid = 1

    def __init__(self, member: Any, training: Training):
        world = virtual_time.now_in
        self.member, self.training = member, training
        self.process = Process(f"{member.run_role.label} process", member.host)
        self.inbox, self._said = SimpleQueue(), SimpleQueue()
        self.process.when_it_ends(self._gone)
        self.reports = 0
        self._has_failed = False  # and does not end
        self._is_told = False  # that an executor of the run leaves
        world.start(self.process, "train function", self._main)
        world.start(self.process, "heartbeat", self._beat)

    def _gone(self) -> None:
        self.training.lose(self.member.run_role.label)
        virtual_time.now_in.at(0.001, self._said.put, None)

    # What runs in it

    def say(self, message: messages.Message) -> None:
        self._said.put(message)

    def _beat(self) -> None:
        serves = self.member.cluster_role.job_name == "ps"
        while True:
            self.say(messages.Heartbeat(serves))
            virtual_time.sleep(self.member.task.heartbeat_timeout / HEARTBEATS * 8)

    def _main(self) -> None:
        if self.member.task.settings.queues:
            self._read()
        elif self.member.is_active:
            self._train()
        else:
            self._await(messages.ClusterDone)
            virtual_time.sleep(virtual_time.now_in.draw.random() * self.training.behavior.late_seconds)
        self.say(messages.Returned())
        self._leave(0)

    def _leave(self, code: int) -> None:
        """End it, unless something keeps it from that."""
        if self._lingers():
            virtual_time.sleep(1e9)
        self.process.end(code)

    def _lingers(self) -> bool:
        lingers = self.training.behavior.lingers
        return lingers > 0 and virtual_time.now_in.draw.random() < lingers

    def _read(self) -> None:
        """A train function that reads what feed tasks send, until they send no more."""
        parts, draw = virtual_time.now_in.parts, virtual_time.now_in.draw
        if not self.member.is_active:
            self._await(messages.ClusterDone)
            return
        self.say(messages.Reading("get_data_feed", keeps_rows=False))
        while not isinstance(message := self.inbox.get(), messages.EndOfInput):
            self._stop_if_failed()
            match message:
                case messages.ChunkReady():
                    virtual_time.sleep(0.5 * self.training.behavior.step_seconds * draw.random())
                    parts.taken[parts.blocks[message.chunk.path]] += 1
                    self.say(messages.ChunkReleased(message.chunk.path))
                case messages.EndOfCall():
                    self.say(messages.RowsRead(call=message.number))

    def _await(self, kind: type) -> Any:
        while not isinstance(message := self.inbox.get(), kind):
            self._is_told |= isinstance(message, messages.Preempted)
        return message

    def _train(self) -> None:
        behavior, label = self.training.behavior, self.member.run_role.label
        self._await(messages.Agreement)
        if behavior.barrier:
            self.say(messages.BarrierReached("start"))
            self._await(messages.BarrierPassed)
        parts, first = virtual_time.now_in.parts, self.training.first
        if self.member.is_chief:
            self.say(messages.Trained(Position(first, 0, 1), True))
        for step in range(first, STEPS):
            virtual_time.sleep(behavior.step_seconds * virtual_time.now_in.draw.random())
            self._stop_if_failed()
            if not self.training.meet(label, step):
                self._break()
            if self._is_preempted(step):
                self._say_failure("executors leave", errors.PreemptedError)
                self._leave(1)
                virtual_time.sleep(0)
            self.say(messages.Report({"loss": float(step)}, step, None, 0.0, label))
            self.reports += 1
            if self.member.is_chief:
                position = Position(step + 1, 0, 1)
                self.say(messages.Trained(position, False))
                if behavior.checkpoints:
                    parts.saved = max(parts.saved, step + 1)
                    self.say(messages.Trained(position, True))
        self.training.meet(label, STEPS)
        if self.member.is_chief:
            self.say(messages.Exported("model"))

    def _break(self) -> None:
        """A collective has broken, because another process has gone."""
        self._stop_if_failed()
        if virtual_time.now_in.draw.random() < self.training.behavior.aborts:
            self.process.end(-6)
        else:
            self._say_failure("a collective broke", collateral=True)
            self._leave(1)
        virtual_time.sleep(0)

    def _is_preempted(self, step: int) -> bool:
        """Whether all processes end after a step, because one has been told that executors leave."""
        training = self.training
        while not self.inbox.is_empty():
            self._is_told |= isinstance(self.inbox.get(), messages.Preempted)
        if self._is_told and self.member.task.settings.ends_when_preempted:
            training.last = min(training.last, step + 1)
        return step >= training.last

    def _say_failure(
        self, message: str, error: type[errors.TfosMlError] = errors.TrainFnError, collateral: bool = False
    ) -> None:
        self.say(Failure(error, message, collateral=collateral))

    def fail(self) -> None:
        """Do what a train function that raises does: end it, or only what connects it to the others."""
        self._say_failure("the train function raised")
        if self._lingers():
            self._has_failed = True
            self.training.lose(self.member.run_role.label)
        else:
            self.process.end(1)

    def _stop_if_failed(self) -> None:
        if self._has_failed:
            virtual_time.sleep(1e9)

    # The supervisor's

    def send(self, message: messages.Message) -> None:
        if not self.process.is_dead:
            self.inbox.put(message)

    def __iter__(self) -> Iterator[messages.Message]:
        while (message := self._said.get()) is not None:
            yield message

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    def kill(self) -> None:
        self.process.end(-9)

    def wait(self, timeout: float) -> bool:
        deadline = virtual_time.now_in.now + timeout
        while not self.process.is_dead and virtual_time.now_in.now < deadline:
            virtual_time.sleep(0.1)
        return self.process.is_dead

    def log_tail(self) -> str:
        return ""


class Budget:
    """Memory that is never short."""

    shared, size, nodes = 0, None, 1

    def among(self, nodes: int, size: int | None) -> Budget:
        return self


class Claim:
    """Instead of ``HostResources``: a TensorFlow process, and a reaper, which tells as the real one does."""

    def __init__(self, member: Any, spark_task: Any, printed: Any):
        self._member = member
        self.port = SimpleNamespace(number=1, release=lambda: None)
        self.child: Child | None = None
        self.supervisor = virtual_time.process()
        self._guarded: dict[str, Any] = {}
        self.reaper: Process | None = None
        self._is_released = False
        self.rows_are_lost = False
        virtual_time.now_in.parts.claims.append(self)

    @property
    def key(self) -> tuple[str, int]:
        """Attempt and rank."""
        return self._member.task.run_id, self._member.rank

    @property
    def member(self) -> Any:
        return self._member

    def acquire(self) -> NodeResources:
        world, member = virtual_time.now_in, self._member
        self._guarded = {}
        self.reaper = Process(f"{member.run_role.label} reaper", member.host)
        self.supervisor.when_it_ends(lambda: self._in_reaper(self._clean_up))
        virtual_time.sleep(world.draw.random())  # a process starts
        training = world.parts.training_of(member.task)
        self.child = child = Child(member, training)
        guard = SimpleNamespace(guard=self._guard)
        directories: Any = SimpleNamespace(budget=0, disk="disk")
        parts: Any = (directories, Budget(), "payload", "logs", self.port, child, child, guard, None)
        return NodeResources(*parts)

    def _guard(self, **facts: Any) -> None:
        self._guarded.update(json.loads(json.dumps(facts, default=asdict)))  # as through the real one's pipe

    def stand(self, seconds: float) -> None:
        self.supervisor.stand(seconds)

    def _in_reaper(self, action: Any) -> None:
        if self.reaper is not None and not self.reaper.is_dead and not self._is_released:
            virtual_time.now_in.start(self.reaper, "reaper", action)

    def _clean_up(self) -> None:
        if self.child is not None:
            self.child.kill()
        if not self._is_released:
            self._is_released = True
            reaper._report_gone(self._guarded)

    def log_tail(self) -> str:
        return ""

    def release(self, report: bool) -> bool:
        self._guarded = {**self._guarded, **({} if report else {"control": None})}
        if self.reaper is None:
            return False
        cleaning = virtual_time.Thread(self._clean_up, name="reaper")
        cleaning.start()
        cleaning.join(CLEANUP_TIMEOUT)
        return report and not cleaning.is_alive()


class Rows(RowSource):
    """Instead of ``Feeder``: a source of rows that come as numbers, and seconds to wait before each."""

    location: str | None = None
    example: bytes | None = None
    skipped = 0

    def __init__(self, task: Any, directories: Any, send: Any):
        self._send = send
        self.rows = {"train": 0, "validation": 0}
        self.size = 0
        self._is_complete = False

    def feed(self, batches: Iterable[tuple[float, int]]) -> Iterator[float]:  # type: ignore[override]
        for seconds, rows in batches:
            yield seconds
            self.rows["train"] += rows

    def handle_message(self, message: messages.Message) -> bool:
        return False

    def counts(self) -> messages.RowCounts | None:
        return messages.RowCounts("AAAA", rows=dict(self.rows)) if self._is_complete else None

    def progress(self) -> dict[str, Any]:
        return {"rows": self.rows["train"], "complete": self._is_complete}

    def finish(self) -> None:
        self._is_complete = True
        self._send(messages.EndOfInput())
