"""Spark's scheduler: jobs whose tasks are processes on executors, which end, are lost, are started again, or never."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import virtual_time
from virtual_time import Condition, Process

MAX_FAILURES = 4
HEARTBEAT_SECONDS = 25.0  # of an executor, before it counts as lost

Function = Callable[[int, int, int, str], Iterator[Any]]
"""Rows of a task: of a partition, an attempt, Spark's id of the task and a host."""


@dataclass(eq=False)
class Executor:
    host: str
    slots: int
    tasks: list[_Task] = field(default_factory=list)
    is_dead: bool = False  # which the driver may not know yet
    processes: list[Process] = field(default_factory=list)  # of all tasks so far

    def end(self) -> None:
        """It hears that it has been given up."""
        for process in self.processes:
            process.end(-9)


@dataclass(eq=False)
class _Task:
    partition: int
    attempt: int
    executor: Executor
    process: Process
    is_over: bool = False  # for the driver


class Spark:
    """A session: its executors and jobs. `replaced` is the probability that a lost executor comes again."""

    def __init__(self, hosts: int, slots: int, replaced: float, failures: int = MAX_FAILURES):
        self.sparkContext = SimpleNamespace(_jsc=object())
        self.executors = [Executor(f"host{number}", slots) for number in range(hosts)]
        self.max_failures = failures
        self._replaced = replaced
        self._slots = slots
        self._names = hosts
        self.stages: list[Stage] = []
        self.task_ids = 0
        self.leaving: set[str] = set()  # hosts whose executors are being decommissioned: they get no new tasks
        self.tags: dict[Any, str] = {}  # of the jobs that threads run

    def leaving_among(self, hosts: frozenset[str]) -> str | None:
        """A host among some whose executor is being decommissioned."""
        return min(hosts & self.leaving, default=None)

    def free(self) -> list[Executor]:
        """An executor for each free slot, by turns."""
        turns = range(self._slots)
        living = [one for one in self.executors if not one.is_dead and one.host not in self.leaving]
        return [one for turn in turns for one in living if turn < one.slots - len(one.tasks)]

    def registered(self) -> int:
        return sum(executor.slots for executor in self.executors)

    def lose(self, host: str, why: str) -> None:
        """The driver notices that an executor is gone."""
        world = virtual_time.now_in
        for executor in [one for one in self.executors if one.host == host]:
            world.note(host, "is lost")
            self.executors.remove(executor)
            for stage in self.stages:
                for task in list(executor.tasks):
                    stage.end_task(task, why)
            if world.draw.random() < self._replaced:
                self._names += 1
                world.at(10 * world.draw.random(), self.add, Executor(f"host{self._names}", self._slots))

    def add(self, executor: Executor) -> None:
        self.executors.append(executor)
        for stage in self.stages:
            stage.offer()

    def cut(self, host: str, seconds: float) -> None:
        """A host is cut off; if that is for long, its executor is lost, and ends when it hears of that."""
        virtual_time.now_in.parts.network.cut(host, seconds)
        if seconds > HEARTBEAT_SECONDS:
            virtual_time.now_in.at(
                HEARTBEAT_SECONDS, self.lose, host, "ExecutorLostFailure: Executor heartbeat timed out"
            )
            for executor in [one for one in self.executors if one.host == host]:
                virtual_time.now_in.at(seconds + 1, executor.end)


class Stage:
    def __init__(self, spark: Spark, size: int, is_barrier: bool, function: Function, speculation: float = 0.0):
        self._spark, self._size, self._is_barrier, self._function = spark, size, is_barrier, function
        self.tag = ""
        self._speculation = speculation  # probability that a task is started a second time
        self._waiting = [(partition, 0) for partition in range(size)]
        self._running: list[_Task] = []
        self._failures = [0] * size
        self._rows: dict[int, list[Any]] = {}
        self._problem: str | None = None
        self._changed = Condition()
        self._gathered: dict[int, dict[int, str]] = {}
        self.gather_changed = Condition()

    def run(self) -> list[Any]:
        """Rows of all tasks, as ``collect`` returns them."""
        self.tag = self._spark.tags.get(virtual_time.now_in.fiber, "")
        self._spark.stages.append(self)
        self.offer()
        self._changed.wait_for(lambda: self._problem is not None or len(self._rows) == self._size)
        self._spark.stages.remove(self)
        if self._problem is not None:
            raise RuntimeError(self._problem)
        return [row for partition in sorted(self._rows) for row in self._rows[partition]]

    @property
    def has_begun(self) -> bool:
        return not self._waiting

    @property
    def hosts(self) -> set[str]:
        return {task.executor.host for task in self._running}

    @property
    def is_running_tasks(self) -> bool:
        return bool(self._running)

    def offer(self) -> None:
        """Start tasks where slots are free; those of a barrier stage all at once."""
        free = self._spark.free()
        if self._problem is not None or (self._is_barrier and len(free) < len(self._waiting)):
            return
        for executor in free[: len(self._waiting)]:
            partition, attempt = self._waiting.pop(0)
            self._spark.task_ids += 1
            process = Process(f"task {partition}.{attempt}", executor.host)
            task = _Task(partition, attempt, executor, process)
            executor.tasks.append(task)
            executor.processes.append(process)
            self._running.append(task)
            process.when_it_ends(lambda task=task: self._died(task))  # type: ignore[misc]
            seconds = virtual_time.now_in.draw.random()
            virtual_time.now_in.at(seconds, self._begin, task, self._spark.task_ids)
            if not attempt and self._speculation and virtual_time.now_in.draw.random() < self._speculation:
                self._waiting.append((partition, 1))

    def _begin(self, task: _Task, number: int) -> None:
        if virtual_time.now_in.parts.network.is_cut(task.executor.host):
            virtual_time.now_in.at(1.0, self._begin, task, number)
        elif not (task.process.is_dead or task.is_over):
            virtual_time.now_in.start(task.process, task.process.name, self._work, task, number)

    def _work(self, task: _Task, number: int) -> None:
        why, rows = None, []
        try:
            for row in self._function(task.partition, task.attempt, number, task.executor.host):
                rows.append(row)
        except Exception as error:
            why = f"org.apache.spark.api.python.PythonException: {type(error).__name__}: {error}"
        self._tell(task, why, rows)
        task.process.end(0)

    def _tell(self, task: _Task, why: str | None, rows: list[Any]) -> None:
        """The driver hears of a task's end, once its host can be reached."""
        if virtual_time.now_in.parts.network.is_cut(task.executor.host):
            virtual_time.now_in.at(1.0, self._tell, task, why, rows)
        else:
            virtual_time.now_in.at(0.1 * virtual_time.now_in.draw.random(), self.end_task, task, why, rows)

    def _died(self, task: _Task) -> None:
        if task.process.returncode and not task.executor.is_dead:
            self._tell(task, "Python worker exited unexpectedly (crashed)", [])

    def end_task(self, task: _Task, why: str | None, rows: list[Any] | None = None) -> None:
        """What follows from the end of a task."""
        if task.is_over or task not in self._running:
            return
        virtual_time.now_in.note(task.process.name, "is over", why and why[:60])
        task.is_over = True
        self._running.remove(task)
        if task in task.executor.tasks:
            task.executor.tasks.remove(task)
        if why is None:
            self._rows.setdefault(task.partition, rows or [])
            self._waiting = [
                (partition, attempt) for partition, attempt in self._waiting if partition != task.partition
            ]
            for copy in [one for one in self._running if one.partition == task.partition]:
                self._kill(copy)
            self._changed.notify_all()
        elif self._is_barrier:
            self._abort(
                "Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed because "
                f"barrier task ResultTask(0, {task.partition}) finished unsuccessfully.\n{why}"
            )
        elif task.partition not in self._rows:
            self._failures[task.partition] += 1
            if self._failures[task.partition] == self._spark.max_failures:
                times = self._spark.max_failures
                self._abort(
                    f"Task {task.partition} in stage 1.0 failed {times} times, most recent failure: Lost task "
                    f"{task.partition}.{task.attempt} in stage 1.0 (TID 7) ({task.executor.host} executor 1): {why}"
                )
            self._waiting.append((task.partition, task.attempt + 1))
        for stage in self._spark.stages:
            stage.offer()

    def _abort(self, problem: str) -> None:
        if self._problem is None:
            self._problem = f"Job aborted due to stage failure: {problem}"
            self.kill_tasks()
            virtual_time.now_in.at(0.2, self._changed.notify_all)

    def kill_tasks(self) -> None:
        """Spark kills Python workers; those of a host that is cut off live on."""
        for task in self._running:
            self._kill(task)

    def _kill(self, task: _Task) -> None:
        if virtual_time.now_in.parts.network.is_cut(task.executor.host):
            virtual_time.now_in.at(1.0, self._kill, task)
        elif not task.process.is_dead:
            virtual_time.now_in.at(0.5 * virtual_time.now_in.draw.random(), task.process.end, -9)

    def cancel(self) -> None:
        if self._problem is None and len(self._rows) < self._size:
            self._abort("Job 1 cancelled part of cancelled job tag")

    def all_gather(self, number: int, rank: int, message: str) -> list[str]:
        while virtual_time.now_in.parts.network.is_cut(virtual_time.process().host):
            virtual_time.sleep(1.0)
        gathered = self._gathered.setdefault(number, {})
        gathered[rank] = message
        self.gather_changed.notify_all()
        self.gather_changed.wait_for(lambda: len(gathered) == self._size)
        virtual_time.sleep(1.0)
        return [gathered[rank] for rank in range(self._size)]


class Job:
    """Instead of ``SparkJob``: runs an action of stages in a thread of the driver."""

    def __init__(self, spark: Spark, tag: str, action: Callable[[], Any]):
        self._spark, self._action = spark, action
        self._ended = virtual_time.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self._tag = tag
        self._thread = virtual_time.Thread(self._run, name="job")
        self._thread.start()

    def _run(self) -> None:
        self._spark.tags[virtual_time.now_in.fiber] = self._tag
        try:
            self.result = self._action()
        except Exception as error:  # raised where the job is waited for
            self.error = error
        self._ended.set()

    def _stages(self) -> list[Stage]:
        return [stage for stage in self._spark.stages if stage.tag == self._tag]

    def wait(self, timeout: float) -> bool:
        return self._ended.wait(timeout)

    def cancel(self, timeout: float) -> None:
        deadline = virtual_time.now_in.now + timeout
        while not self._ended.is_set():
            for stage in self._stages():
                stage.cancel()
            if self._ended.wait(0.5) or virtual_time.now_in.now > deadline:
                break

    def executors(self) -> frozenset[str]:
        """Hosts that stand for the executors of its tasks; empty until all have begun."""
        begun = [stage for stage in self._stages() if stage.has_begun]
        return frozenset(host for stage in begun for host in stage.hosts)

    def waits_for_slots(self, has_begun: bool) -> bool:
        return not any(stage.is_running_tasks for stage in self._stages())


def barrier(stage: Stage, size: int, rank: int, host: str) -> SimpleNamespace:
    """A ``BarrierTaskContext``."""
    rounds = count(1)
    return SimpleNamespace(
        partitionId=lambda: rank,
        getTaskInfos=lambda: [SimpleNamespace(address=f"{host}:0")] * size,
        cpus=lambda: 1,
        resources=dict,
        attemptNumber=lambda: 0,
        taskAttemptId=lambda: 0,
        allGather=lambda message="": stage.all_gather(next(rounds), rank, message),
    )
