"""The chaos test itself: a seed replays its schedule, and faults of the code that are planted are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]
import drawn_runs  # noqa: E402
from drawn_runs import LOCAL, Fault, Run  # noqa: E402
from runner import Runner  # noqa: E402

DRAWN = "import drawn_runs, sys; print('\\n'.join(str(drawn_runs.draw(3, number)) for number in range(300)))"
NO_FAULT = Run(0, 0, LOCAL, "fit", nodes=2, rows=60, partitions=1, epochs=2, restarts=0, options=(), faults=())


def test_a_seed_draws_the_same_runs_in_every_process():
    found = [
        subprocess.run([sys.executable, "-c", DRAWN], cwd=HERE, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert found[0] == found[1]
    runs = [drawn_runs.draw(3, number) for number in range(300)]
    assert "\n".join(map(str, runs)) == found[0].rstrip("\n")
    assert len({str(run) for run in runs}) == 300
    assert {fault.what for run in runs for fault in run.faults} >= {*drawn_runs.CHILD, *drawn_runs.SUPERVISOR}
    assert {run.program for run in runs} == {*drawn_runs.PROGRAMS}


@pytest.fixture
def runner(tmp_path, nothing_left):
    runner = Runner(tmp_path)
    yield runner
    runner.leave()


def violations(runner: Runner, planted: str = "", program: str = "fit", **changed) -> str:
    """What the checker finds in a run of its own number, with something planted in it."""
    violations.number += 1
    drawn = {**NO_FAULT.facts(), "number": violations.number, "program": program, **changed}
    return "\n".join(runner.run(Run(**drawn), planted)["violations"])


violations.number = 0


@pytest.mark.chaos  # five runs
def test_good_runs_pass_and_planted_faults_are_found(runner):
    assert violations(runner) == ""
    exits = Fault("exit 0", "feed", 0, 1, 0.0, held=True)
    assert violations(runner, faults=(exits,)) == ""
    assert "rows lost" in violations(runner, "dropped chunk")
    assert "false success: exit 0" in violations(runner, "exit of 0", faults=(exits,))
    assert "sleep 600" in violations(runner, "leaked process")


@pytest.mark.chaos  # trains Keras models
def test_a_planted_loss_of_checkpoints_is_found(runner):
    kills = Fault("kill child", "end", 0, 0, 0.0, held=True)
    keras = {"program": "keras", "restarts": 1, "faults": (kills,), "options": ("modelDir",)}
    assert violations(runner, **keras) == ""
    assert "begins with step 0 again" in violations(runner, "lost checkpoint", **keras)
