"""Faults in every phase of a fit: each row is trained once in each epoch, or the fit raises and leaves nothing."""

from __future__ import annotations

from functools import partial

import pytest
from ledger_case import Case, Run

from tfos_ml import errors
from tfos_ml.cluster import cluster_server, launcher, meeting, tfcluster
from tfos_ml.cluster.node_task import NodeTask

pytestmark = pytest.mark.timeout(60)
FITS = ["barrier", "plain", "connect"]
PHASES = ["feed", "epoch", "export"]
SIGNALS = ["kill child", "kill supervisor", "stop child", "stop supervisor"]
ANSWERS = ["lost answers", "late answers", "doubled calls"]


@pytest.fixture(autouse=True)
def no_real_spark(monkeypatch):
    """A real session of tests before may be there or gone; deadlines of the driver are shorter."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(meeting, "CALL_TIMEOUT", 1.0)
    monkeypatch.setattr(cluster_server, "GRACE_SECONDS", 2.0)
    monkeypatch.setattr(launcher, "CAUSE_SECONDS", 2.0)
    monkeypatch.setattr(tfcluster, "CLEANUP_TIMEOUT", 2.0)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a case, checks the ledger, and returns the case's error, if any."""

    def run(mode, fault, phase, victim=0, restarts=0):
        case = Case(mode, fault, phase, victim, restarts)
        one = Run(case, tmp_path)
        monkeypatch.setattr(launcher, "ControlServer", one.answers.hit(launcher.ControlServer))
        monkeypatch.setattr(tfcluster, "ClusterServer", one.answers.hit(tfcluster.ClusterServer))
        monkeypatch.setattr(tfcluster, "NodeTask", partial(NodeTask, silence=one.silence))
        one.fit()
        print(f"{case}: {one.seconds:.2f} s, {type(one.error).__name__}: {one.error}")
        one.check()
        return one.error

    return run


@pytest.mark.parametrize("mode", [*FITS, "cluster"])
def test_without_a_fault(run, mode):
    assert run(mode, "none", "epoch") is None


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", SIGNALS)
@pytest.mark.parametrize("mode", FITS)
def test_nodes_that_die_or_stop(run, mode, fault, phase, victim):
    """The chief's fit raises, that of the other begins again and succeeds."""
    error = run(mode, fault, phase, victim, restarts=victim)
    if victim:
        assert error is None
    else:
        assert (error.role, error.index) == ("worker", 0)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mode", FITS)
def test_rows_that_spark_cannot_fetch(run, mode, phase, victim):
    error = run(mode, "fetch failure", phase, victim, restarts=victim)
    assert error is None if victim else isinstance(error, errors.InputLostError)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", ANSWERS)
@pytest.mark.parametrize("mode", ["barrier", "plain", "cluster"])
def test_answers_of_the_driver(run, mode, fault, phase):
    assert run(mode, fault, phase) is None


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", SIGNALS)
def test_nodes_of_a_cluster_that_die_or_stop(run, fault, phase, victim):
    error = run("cluster", fault, phase, victim)
    assert (error.role, error.index) == ("worker", victim)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("fault", ["fetch failure", "kill feeder"])
def test_feed_tasks_that_spark_runs_again(run, fault, victim):
    assert run("cluster", fault, "feed", victim) is None
