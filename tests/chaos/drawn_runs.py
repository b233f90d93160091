"""Draws what each run does: a pure function of the seed and of the number of the run."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any

BLOCK = 30  # runs in a row on one master, whose start takes long
LOCAL, RETRIES, EXECUTORS = "local[4]", "local[4,3]", "local-cluster[2,2,1024]"
SPECULATION = "local-cluster[2,2,1024] speculation"
CONNECT, STANDALONE, NETWORK, NAT = "connect", "standalone", "network", "network, driver behind NAT"
MASTERS = {LOCAL: 5, RETRIES: 2, EXECUTORS: 3, SPECULATION: 2, CONNECT: 2, STANDALONE: 2, NETWORK: 1, NAT: 1}
HOSTS = (NETWORK, NAT)  # where executors have hosts of their own

CHILD = ("kill child", "term child", "stop child", "segfault", "abort", "exit 0", "exit 3", "sys.exit 3", "raise")
SUPERVISOR = ("kill supervisor", "stop supervisor", "term supervisor")
HELPERS = ("kill reaper", "kill fork server", "kill all")
DRIVER = ("cancel", "interrupt", "kill driver", "pause driver")
DAEMON = ("kill daemon", "term daemon")
IDLE = (*DAEMON, "kill fork server", "term fork server", "kill scoring", "stop scoring")
DISK = ("full disk", "frozen disk")
MEMORY = ("full memory",)
CLOCK = ("clock forward", "clock back")
STORE = ("failing store",)
INPUT = ("kill child", "exit 3", "raise", "cancel", "interrupt")
SCORING = ("kill scoring", "term scoring", "stop scoring")
NODES = (*CHILD, *SUPERVISOR, *HELPERS)
EXECUTOR = ("kill executor", "stop executor")
LINK = ("cut link", "slow link")
GOES_ON = (*HELPERS[:2], "pause driver", *CLOCK, *DISK, *MEMORY, *STORE, *SCORING, "slow link")  # if all is well
WEIGHTS = {
    "kill driver": 0.4,
    "pause driver": 0.5,
    "stop executor": 0.5,
    "stop scoring": 0.3,
    "cut link": 2.0,
    "slow link": 2.0,
}
WEIGHTS["failing store"] = 10.0  # few runs have one

WITH_EXECUTORS = (EXECUTORS, SPECULATION, STANDALONE, *HOSTS)
UNABLE = {("store", master) for master in HOSTS}  # which do not reach the store


@dataclass(frozen=True)
class Kind:
    """What can happen to a program.

    Attributes
    ----------
    phases : tuple of str
        That its nodes go through, in order.
    faults : tuple of str
        That can happen in each of them.
    weight : float
        How often it is drawn.
    idle : tuple of str
        Faults before it begins, when nothing runs.
    restarts : bool
        Whether it has ``maxRestarts``.
    is_cluster : bool
        Whether it is one that neither a client of Spark Connect nor a session that speculates can lead.
    options : tuple of str
        What may be chosen, each by itself.
    """

    phases: tuple[str, ...]
    faults: tuple[str, ...]
    weight: float
    idle: tuple[str, ...] = IDLE[:4]
    restarts: bool = True
    is_cluster: bool = False
    options: tuple[str, ...] = ()


PROGRAMS = {
    "fit": Kind(("input", "start", "feed", "epoch", "export"), (*NODES, *DRIVER, *CLOCK, *DISK, *MEMORY), 5),
    "dataset": Kind(("start", "epoch", "export"), (*NODES, *DRIVER, *CLOCK, *DISK, *MEMORY), 3),
    "keras": Kind(
        ("build", "start", "step", "epoch", "end"),
        (*NODES, *DRIVER, *CLOCK, *DISK, *MEMORY, *STORE),
        0.8,
        options=("modelDir", "elastic", "cacheDir", "store"),
    ),
    "feed": Kind(
        ("input", "start", "feed", "epoch", "export"),
        (*NODES, *DRIVER, *CLOCK, *MEMORY),
        4,
        restarts=False,
        is_cluster=True,
    ),
    "infer": Kind(("input", "start", "feed"), (*NODES, *DRIVER, *MEMORY), 2, restarts=False, is_cluster=True),
    "parallel": Kind(("start", "end"), (*NODES, *DRIVER), 1, restarts=False, is_cluster=True),
    "stream": Kind(("input", "start", "feed"), (*NODES, *MEMORY), 2, restarts=False, is_cluster=True),
    "score": Kind(("input",), (), 3, IDLE, restarts=False),
    "score stream": Kind(("input",), (), 1, IDLE, restarts=False),
    "records": Kind(("input",), (), 1, restarts=False),
}


@dataclass(frozen=True)
class Fault:
    """What happens to which node: when its attempt is in a phase, after some seconds.

    The node waits in the phase for the fault if it is `held`, and else goes on.
    """

    what: str
    phase: str
    attempt: int
    rank: int
    seconds: float
    held: bool

    @property
    def at(self) -> str:
        """The moment, as nodes mark it."""
        return f"{self.attempt}-{self.phase}-{self.rank}"

    def __str__(self) -> str:
        place = "" if self.phase == "idle" else f" {self.rank} of attempt {self.attempt}"
        return f"{self.what} @ {self.phase}{place} {'+' if self.held else '~'}{self.seconds:.2f}s"


@dataclass(frozen=True)
class Run:
    seed: int
    number: int
    master: str
    program: str
    nodes: int
    rows: int
    partitions: int
    epochs: int
    restarts: int
    options: tuple[str, ...]
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        what = " + ".join(map(str, self.faults)) or "no fault"
        size = f"{self.nodes} nodes, {self.rows} rows in {self.partitions}, {self.epochs} epochs"
        options = "".join(f", {option}" for option in self.options)
        name = f"{self.seed}/{self.number} {self.program} on {self.master}"
        return f"{name} ({size}, {self.restarts} restarts{options}): {what}"

    def facts(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return asdict(self)


def master_of(seed: int, number: int, masters: tuple[str, ...]) -> str:
    """The master of a block of runs."""
    weights = [MASTERS[master] for master in masters]
    return random.Random(f"master {seed} {number // BLOCK}").choices(masters, weights)[0]


def draw(seed: int, number: int, masters: tuple[str, ...] = tuple(MASTERS), programs: tuple[str, ...] = ()) -> Run:
    """The run of a number."""
    chance = random.Random(f"run {seed} {number}")
    master = master_of(seed, number, masters)
    able = [
        name
        for name, kind in PROGRAMS.items()
        if not (kind.is_cluster and master in (CONNECT, SPECULATION)) and (not programs or name in programs)
    ]
    program = chance.choices(able, [PROGRAMS[name].weight for name in able])[0]
    kind = PROGRAMS[program]
    run = Run(
        seed,
        number,
        master,
        program,
        nodes=chance.choice((1, 2, 2, 3)),
        rows=chance.choice((37, 60, 100, 250)),
        partitions=chance.choice((1, 2, 3)),
        epochs=chance.choice((1, 2, 3)),
        restarts=chance.choice((0, 0, 1, 2)) if kind.restarts else 0,
        options=tuple(option for option in kind.options if chance.random() < 0.4 and (option, master) not in UNABLE),
        faults=(),
    )
    return replace(run, faults=_faults(run, kind, chance))


def _faults(run: Run, kind: Kind, chance: random.Random) -> tuple[Fault, ...]:
    """One or two: the second in the next attempt or in a later phase, or at once where the first ends the attempt."""
    first = _fault(run, kind, chance, 0, kind.phases)
    if chance.random() < 0.4:
        return (first,)
    goes_on = first.phase == "idle" or first.what in GOES_ON
    attempt = 0 if goes_on or first.what in DRIVER else min(run.restarts, chance.choice((0, 1)))
    at_once = not attempt and not goes_on
    second = _fault(run, kind, chance, attempt, (first.phase,) if at_once else kind.phases)
    if at_once and second.phase != "idle":
        second = replace(second, seconds=first.seconds)
    if second.at == first.at:
        second = replace(second, rank=(first.rank + 1) % _places(run, first.phase))
    if "idle" in (first.phase, second.phase) or first.attempt != second.attempt:
        return tuple(sorted((first, second), key=lambda fault: (fault.phase != "idle", fault.attempt)))
    return tuple(sorted({first.at: first, second.at: second}.values(), key=lambda f: kind.phases.index(f.phase)))


def _places(run: Run, phase: str) -> int:
    """How many nodes, or tasks that compute rows, are in a phase."""
    return run.partitions if phase == "input" else run.nodes


def able_of(run: Run, kind: Kind, phase: str) -> tuple[str, ...]:
    """Faults that can happen in a phase on a master."""
    if phase == "idle":
        return (*kind.idle, *EXECUTOR[:1]) if run.master in WITH_EXECUTORS else kind.idle
    if phase == "input":
        return (*INPUT, *SCORING) if run.program.startswith("score") else INPUT
    found = kind.faults
    if run.master in WITH_EXECUTORS:  # of which Spark gives up all when its clock is set forward
        found = (*(what for what in found if what != "clock forward"), *EXECUTOR)
    if run.master in HOSTS:
        found = (*found, *LINK)
    if not {"store", "modelDir"} <= {*run.options}:
        found = tuple(what for what in found if what not in STORE)
    return found


def _fault(run: Run, kind: Kind, chance: random.Random, attempt: int, phases: tuple[str, ...]) -> Fault:
    if attempt == 0 and chance.random() < 0.06:
        return Fault(chance.choice(able_of(run, kind, "idle")), "idle", 0, 0, 0.0, held=False)
    phase = chance.choice(phases)
    able = able_of(run, kind, phase)
    what = chance.choices(able, [WEIGHTS.get(what, 1.0) for what in able])[0]
    rank = chance.randrange(_places(run, phase))
    held = what in ACTIONS or chance.random() < 0.8
    seconds = chance.choice((0.0, 0.0, 0.1, 0.5)) if held else round(chance.uniform(0.0, 0.3), 2)
    return Fault(what, phase, attempt, rank, seconds, held)


ACTIONS = ("exit 0", "exit 3", "sys.exit 3", "raise", "segfault", "abort")
"""Faults that the program itself has, when it is told to."""
