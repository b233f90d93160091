"""Clusters that feed tasks feed: ``TFCluster`` and all below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import virtual_time
from node_tasks import make_task
from played import CONSTANTS, Played
from schedule import Schedule
from simulated_spark import Stage
from virtual_time import Process

from tfos_ml import errors
from tfos_ml.agent import feed_task, standalone_supervisor
from tfos_ml.agent.feed_task import FeedSpec
from tfos_ml.protocol.node_task import NodeSettings
from tfos_ml.stages.input_mode import InputMode
from tfos_ml.tfcluster.tfcluster import TFCluster

PARTITIONS_OF_A_NODE = 2
BLOCKS = 2  # of a partition
ROWS = 10  # of a block


FACTS = SimpleNamespace(endpoint="driver")
"""What the session of a cluster says."""


class Rows:
    """A batch of rows, and at the same time the block and the message that hold it."""

    def __init__(self, call: int, partition: int, block: int):
        self.what, self.num_rows = (call, partition, block), ROWS


class Standalone:
    """Instead of ``SupervisorProcess``: a supervisor that outlives its task."""

    def __init__(self, node: standalone_supervisor.StandaloneNode):
        self._process = Process(f"supervisor {node.info.rank}", virtual_time.process().host)
        self._joined = virtual_time.Event()
        self._process.when_it_ends(self._joined.set)
        self._has_joined = False
        virtual_time.now_in.start(self._process, self._process.name, self._lead, node)

    def _lead(self, node: standalone_supervisor.StandaloneNode) -> None:
        standalone_supervisor.lead(node, SimpleNamespace(write=self._say, flush=lambda: None))  # type: ignore[arg-type]
        self._process.end(0)

    def _say(self, line: bytes) -> None:
        self._has_joined = True
        self._joined.set()

    def has_joined(self) -> bool:
        self._joined.wait()
        return self._has_joined

    def wait(self, timeout: float | None = None) -> int:
        ended = virtual_time.Event()
        self._process.when_it_ends(ended.set)
        ended.wait(timeout)
        return self._process.returncode or 0

    def close(self) -> None:
        pass


class Cluster(Played):
    """One cluster, which is fed some times and shut down."""

    def __init__(self, schedule: Schedule):
        super().__init__(schedule)
        self.world.parts.taken = self.taken = Counter()  # rows that train functions have read: call, partition, block
        self.world.parts.blocks = {}
        self.fed: list[int] = []  # calls of train that have returned
        self.is_shut_down = False
        self.spark.sparkContext.parallelize = lambda ranks, slices: SimpleNamespace(
            foreach=lambda start: Stage(self.spark, slices, False, lambda *at: self._start(start, *at)).run()
        )

    @property
    def partitions(self) -> int:
        """Of one call."""
        return PARTITIONS_OF_A_NODE * len(self.schedule.template.feed_ranks)

    def _start(self, start: Callable[[int], None], rank: int, attempt: int, number: int, host: str) -> Iterator[Any]:
        self.world.parts.task_info = (attempt, number)
        start(rank)
        yield from ()

    def run(self) -> None:
        task = make_task(
            template=self.schedule.template,
            barrier=False,
            settings=NodeSettings(feed_timeout=20.0, queues=["input"]),
            **CONSTANTS,
        )
        cluster = TFCluster(self.spark, FACTS, task, InputMode.SPARK)  # type: ignore[arg-type]
        cluster._start(b"")
        with cluster:
            for call in range(1, self.schedule.calls + 1):
                cluster.train(self._data, feed_timeout=20.0)
                self.fed.append(call)
        self.is_shut_down = len(cluster.summary["nodes"]) == self.schedule.template.size

    def _data(self, spec: FeedSpec) -> Stage:
        def feed(partition: int, attempt: int, number: int, host: str) -> Iterator[Any]:
            batches = (self._slow(Rows(spec.number, partition, block)) for block in range(BLOCKS))
            yield partition, feed_task._put(spec, partition, batches)  # type: ignore[arg-type]

        return Stage(self.spark, self.partitions, False, feed, self.schedule.speculation)

    def _slow(self, rows: Rows) -> Rows:
        virtual_time.sleep(self.world.draw.random())
        return rows

    def check(self) -> None:
        """See :class:`Played`: no rows are read twice, and those of a call that has returned are read once."""
        twice = {rows: times for rows, times in self.taken.items() if times > 1}
        self.must(not twice, f"rows were read twice: {twice}")
        for call in self.fed:
            missing = [
                (call, partition, block)
                for partition in range(self.partitions)
                for block in range(BLOCKS)
                if not self.taken[call, partition, block]
            ]
            self.must(not missing, f"rows were never read: {missing}")
        if not self.driver.is_dead:
            self.must((self.error is None) == self.is_shut_down, "no error, and no end")
            if self.error is None:
                self.must(len(self.fed) == self.schedule.calls, "calls have not returned")


def train_action(data: Callable[[FeedSpec], Stage], spec: FeedSpec) -> Callable[[], dict[int, int | None]]:
    """Instead of that of ``feeding``."""
    return lambda: dict(data(spec).run())


def refused(rows: Any) -> None:
    """Instead of ``blocks.check``."""
    if not isinstance(rows, Rows):
        raise errors.TfosMlError("no rows")
