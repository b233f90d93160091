"""What a seed stands for: a cluster, a network, and faults."""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulated_network import Weather
from simulated_node import Behavior

from tfos_ml.protocol.cluster_template import ClusterTemplate, make_template

HEARTBEAT, LEASE, RESERVATION = 20.0, 15.0, 30.0
OF_NODES = (
    "process killed", "process fails", "process stands", "supervisor killed", "supervisor stands", "host lost",
    "host cut off", "rows lost",
)  # fmt: skip
KINDS = (*OF_NODES, "driver stands", "driver killed", "executor leaves")


@dataclass(frozen=True)
class Fault:
    """What goes wrong, when, and on which node."""

    kind: str
    at: float
    rank: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Schedule:
    seed: int
    template: ClusterTemplate
    is_barrier: bool  # of a fit
    max_restarts: int
    least: int  # nodes; fewer than the template has in an elastic fit
    hosts: int
    late: float | None  # when the last host comes; None: it is there
    slots: int  # of a host
    replaced: float  # probability that a lost executor comes again
    failures: int  # of a task, until Spark gives its job up
    speculation: float  # probability that Spark starts a second copy of a feed task
    calls: int  # of train, of a cluster
    weather: Weather
    behavior: Behavior
    faults: tuple[Fault, ...]

    @property
    def is_calm(self) -> bool:
        """Whether each message arrives soon."""
        return not (self.weather.lost or self.weather.slow)


def drawn(seed: int, size: int | None = None) -> Schedule:
    """The schedule of a seed, with so many nodes, or a few."""
    draw = random.Random(seed)
    chance = draw.random
    size = size or draw.choice([1, 2, 2, 2, 3, 3, 4, 5])
    num_ps = int(size > 2 and chance() < 0.2)
    evaluator = size > num_ps + 2 and chance() < 0.2
    template = make_template(size, num_ps, draw.choice([None, None, "chief"]), evaluator)
    behavior = Behavior(
        step_seconds=draw.choice([0.3, 0.8, 2.5]),
        breaks_after=draw.choice([0.0, 0.5, 2.0, 8.0]),
        hangs=draw.choice([0.0, 0.3]),
        aborts=draw.choice([0.0, 0.3]),
        barrier=chance() < 0.2,
        late_seconds=draw.choice([0.0, 5.0]),
        checkpoints=chance() < 0.7,
        lingers=random.Random(f"lingers {seed}").choice([0.0, 0.0, 0.0, 0.3]),  # seeds stay what they were without it
    )
    calm = Weather(doubled=draw.choice([0.0, 0.1]))
    bad = Weather(draw.choice([0.0, 0.02, 0.1]), draw.choice([0.0, 0.2]), draw.choice([0.0, 0.1]), draw.choice([1, 7]))
    faults = tuple(
        Fault(
            draw.choice(KINDS if chance() < 0.5 else OF_NODES),
            draw.choice([3.0, 9.0]) * chance(),
            draw.randrange(size),
            draw.choice([1.0, 8.0, 40.0]) * chance(),
        )
        for _ in range(draw.choice([0, 1, 1, 1, 2, 3]))
    )
    slots = draw.choice([1, 1, 2])
    least = draw.choice([size, max(1, size - 1)]) if template.feed_ranks == tuple(range(size)) else size
    return Schedule(
        seed,
        template,
        is_barrier=chance() < 0.5,
        max_restarts=draw.choice([0, 0, 1, 2]),
        least=least,
        hosts=-(-size // slots) + draw.choice([0, 0, 1]),
        late=6 + 5 * chance() if least < size and chance() < 0.4 else None,
        slots=slots,
        replaced=draw.choice([0.3, 1.0]),
        failures=draw.choice([1, 4]),
        speculation=draw.choice([0.0, 0.3]),
        calls=draw.choice([1, 2]),
        weather=draw.choice([calm, bad]),
        behavior=behavior,
        faults=faults,
    )
