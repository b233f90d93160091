"""Faults in every phase of a fit: each row is trained once in each epoch, or the fit raises and leaves nothing."""

from __future__ import annotations

import threading
from functools import partial
from itertools import product

import pytest
from ledger_case import LONG, Case, Run

from tfos_ml import errors
from tfos_ml.driver import attempt
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.tfcluster import start, tfcluster

pytestmark = pytest.mark.usefixtures("without_spark")
FITS = ["barrier", "plain", "connect"]
PHASES = ["feed", "epoch", "export"]


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
        monkeypatch.setattr(start, "NodeTask", partial(NodeTask, heartbeat_timeout=LONG))
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


def cases(*lists):
    """Of all combinations those that have each two values together once, or nearly."""
    return [values for values in product(*lists) if sum(map(list.index, lists, values)) % len(PHASES) == 0]


@pytest.mark.parametrize("mode", [*FITS, "cluster"])
def test_without_a_fault(run, mode):
    assert run(Case(mode, "none", "epoch", 0, 0)) == [None]


@pytest.mark.parametrize(("mode", "fault", "phase"), cases(FITS, ["kill child", "kill supervisor"], PHASES))
def test_nodes_that_die(run, mode, fault, phase):
    """The chief, whose fit fails, or another node, whose fit begins again."""
    victim = (FITS.index(mode) + PHASES.index(phase)) % 2
    case = Case(mode, fault, phase, victim, victim)
    check_named(case, *run(case))


def test_nodes_that_stand_still(run):
    """Found out by their silence: those of the three phases wait for it together."""
    cases = [Case("plain", "stop supervisor", phase, number % 2, number % 2) for number, phase in enumerate(PHASES)]
    for case, error in zip(cases, run(*cases), strict=True):
        check_named(case, error)


@pytest.mark.parametrize(("mode", "phase", "victim"), cases(FITS, PHASES, [0, 1]))
def test_rows_that_spark_cannot_fetch(run, mode, phase, victim):
    """Whether the node's peer still reads, trains or has exported."""
    (error,) = run(Case(mode, "fetch failure", phase, victim, victim))
    assert error is None if victim else isinstance(error, errors.InputLostError)


@pytest.mark.parametrize(
    ("mode", "fault", "phase"),
    [
        *cases(["barrier", "plain"], ["lost answers", "doubled calls"], PHASES),
        *cases(["cluster"], ["lost answers", "late answers", "doubled calls"], PHASES),
    ],
)
def test_answers_of_the_driver(run, mode, fault, phase):
    assert run(Case(mode, fault, phase, 0, 0)) == [None]


@pytest.mark.parametrize(("fault", "phase", "victim"), cases(["kill child", "kill supervisor"], PHASES, [0, 1]))
def test_nodes_of_a_cluster_that_die(run, fault, phase, victim):
    case = Case("cluster", fault, phase, victim, 0)
    check_named(case, *run(case))


@pytest.mark.parametrize("fault", ["fetch failure", "kill feeder"])
def test_feed_tasks_that_spark_runs_again(run, fault):
    assert run(Case("cluster", fault, "feed", 0, 0)) == [None]


def test_a_supervisor_that_dies_with_its_process_and_guardian(run):
    assert run(Case("barrier", "kill all", "epoch", 1, 1)) == [None]
