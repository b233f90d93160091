"""Faults in every phase of a fit: each row is trained once in each epoch, or the fit raises and leaves nothing."""

from __future__ import annotations

import pytest
from ledger_case import Case, Run

from tfos_ml.cluster import launcher

pytestmark = pytest.mark.timeout(60)
MODES = ["barrier", "plain", "connect"]
PHASES = ["feed", "epoch", "export"]


def run(case, directory):
    run = Run(case, directory)
    run.fit()
    print(f"{case}: {run.seconds:.2f} s, {type(run.error).__name__}: {run.error}")
    run.check()
    return run


@pytest.fixture(autouse=True)
def no_real_spark(monkeypatch):
    """A real session of tests before may be there or gone."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(launcher, "CALL_TIMEOUT", 1.0)
    monkeypatch.setattr(launcher, "CAUSE_SECONDS", 2.0)


@pytest.mark.parametrize("mode", MODES)
def test_without_a_fault(tmp_path, mode):
    assert run(Case(mode, "none", "epoch", 0, 0), tmp_path).error is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", ["kill child", "kill supervisor", "stop child", "stop supervisor", "fetch failure"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", [0, 1])
def test_nodes_that_fail(tmp_path, mode, fault, phase, victim):
    restarts = victim
    run(Case(mode, fault, phase, victim, restarts), tmp_path)
