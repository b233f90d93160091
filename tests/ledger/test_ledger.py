"""Faults in every phase of a fit: each row is trained once in each epoch, or the fit raises and leaves nothing."""

from __future__ import annotations

import threading
from functools import partial
from itertools import product

import pytest
from ledger_case import Case, Run

from tfos_ml import errors
from tfos_ml.driver import attempt
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.tfcluster import start, tfcluster

pytestmark = pytest.mark.usefixtures("without_spark")
slower = partial(pytest.param, marks=pytest.mark.chaos)  # the same in another mode
FITS = ["barrier", "plain", "connect"]
PHASES = ["feed", "epoch", "export"]
SIGNALS = ["kill child", "kill supervisor", "stop child", "stop supervisor"]
ANSWERS = ["lost answers", "late answers", "doubled calls"]
WAITS = {("barrier", "late answers"), ("plain", "late answers")}  # those of a cluster are late, too


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs cases that have their fault and mode in common, all at once; checks the ledgers, and returns the errors."""

    def run(*cases):
        runs = []
        for number, case in enumerate(cases):
            directory = tmp_path / f"case-{number}"
            directory.mkdir()
            runs.append(Run(case, directory))
        hit = runs[0].answers.hit(ControlServer)
        for module in (attempt, tfcluster):
            monkeypatch.setattr(module, "ControlServer", hit)
        monkeypatch.setattr(start, "NodeTask", partial(NodeTask, heartbeat_timeout=runs[0].silence))
        threads = [threading.Thread(target=one.fit, name=str(one.case)) for one in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in runs:
            print(f"{one.case}: {one.seconds:.2f} s, {type(one.error).__name__}: {one.error}")
        for one in runs:
            one.check()
        return [one.error for one in runs]

    return run


def check_named(case, error):
    """A fit that may not begin again raises an error that names its victim; one that may succeeds."""
    if case.restarts:
        assert error is None
    else:
        assert (error.role, error.index) == ("worker", case.victim)


def victims(mode, fault):
    """A node for each phase: the chief, whose fit fails, or another one, whose fit begins again; and the opposite."""
    first = (FITS.index(mode) + SIGNALS.index(fault)) % 2
    return [{phase: (first + i + other) % 2 for i, phase in enumerate(PHASES)} for other in (0, 1)]


def killed(which):
    """Cases of all modes, faults and phases; those that are no chaos tests have each two of these together once."""
    faults = [fault for fault in SIGNALS if fault.startswith("kill")]
    cases = [Case(m, f, p, v, v) for m in FITS for f in faults for p, v in victims(m, f)[which].items()]
    places = [(FITS.index(c.mode), faults.index(c.fault), PHASES.index(c.phase)) for c in cases]
    return [
        pytest.param(case, id=str(case), marks=[pytest.mark.chaos] * bool(sum(at) % 3))
        for case, at in zip(cases, places, strict=True)
    ]


@pytest.mark.parametrize("mode", [*FITS, "cluster"])
def test_without_a_fault(run, mode):
    assert run(Case(mode, "none", "epoch", 0, 0)) == [None]


@pytest.mark.parametrize("case", killed(0))
def test_nodes_that_die(run, case):
    check_named(case, *run(case))


@pytest.mark.chaos
@pytest.mark.parametrize("case", killed(1))
def test_more_nodes_that_die(run, case):
    check_named(case, *run(case))


@pytest.mark.parametrize("which", [0, slower(1)])
@pytest.mark.parametrize("fault", [slower("stop child"), "stop supervisor"])
@pytest.mark.parametrize("mode", [slower("barrier"), "plain", slower("connect")])
def test_nodes_that_stand_still(run, mode, fault, which):
    """Found out by their silence: those of the three phases wait for it together."""
    cases = [Case(mode, fault, phase, victim, victim) for phase, victim in victims(mode, fault)[which].items()]
    for case, error in zip(cases, run(*cases), strict=True):
        check_named(case, error)


def is_rare(number, values):
    return number % len(PHASES) > 0 or values[:2] in WAITS


def each_with_some(*lists):
    """All combinations; those that are no chaos tests have each value with each phase once, not with all others."""
    return [
        pytest.param(*values, marks=[pytest.mark.chaos] * is_rare(sum(map(list.index, lists, values)), values))
        for values in product(*lists)
    ]


@pytest.mark.parametrize(("mode", "phase", "victim"), each_with_some(FITS, PHASES, [0, 1]))
def test_rows_that_spark_cannot_fetch(run, mode, phase, victim):
    """Whether the node's peer still reads, trains or has exported."""
    (error,) = run(Case(mode, "fetch failure", phase, victim, victim))
    assert error is None if victim else isinstance(error, errors.InputLostError)


@pytest.mark.parametrize(("mode", "fault", "phase"), each_with_some(["barrier", "plain", "cluster"], ANSWERS, PHASES))
def test_answers_of_the_driver(run, mode, fault, phase):
    assert run(Case(mode, fault, phase, 0, 0)) == [None]


@pytest.mark.parametrize(
    ("fault", "phase", "victim"), each_with_some(["kill child", "kill supervisor"], PHASES, [0, 1])
)
def test_nodes_of_a_cluster_that_die(run, fault, phase, victim):
    case = Case("cluster", fault, phase, victim, 0)
    check_named(case, *run(case))


@pytest.mark.chaos  # as those of fits do
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("fault", ["stop child", "stop supervisor"])
def test_nodes_of_a_cluster_that_stand_still(run, fault, victim):
    cases = [Case("cluster", fault, phase, victim, 0) for phase in PHASES]
    for case, error in zip(cases, run(*cases), strict=True):
        check_named(case, error)


@pytest.mark.parametrize("victim", [0, slower(1)])
@pytest.mark.parametrize("fault", ["fetch failure", "kill feeder"])
def test_feed_tasks_that_spark_runs_again(run, fault, victim):
    assert run(Case("cluster", fault, "feed", victim, 0)) == [None]


@pytest.mark.parametrize("mode", ["barrier", slower("plain"), slower("connect")])
def test_a_supervisor_that_dies_with_its_process_and_guardian(run, mode):
    assert run(Case(mode, "kill all", "epoch", 1, 1)) == [None]
