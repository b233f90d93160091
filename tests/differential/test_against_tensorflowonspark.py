"""``tfos_ml.compat`` does what TensorFlowOnSpark 2.2.5 does, by the same program.

``theirs.json`` is what the program found with it (``record.py`` makes it again, in an environment of its own).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
THEIRS = json.loads((HERE / "theirs.json").read_text())


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ours")
    done = subprocess.run(
        [sys.executable, str(HERE / "scenarios.py"), "tfos_ml.compat", str(directory)],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads((directory / "found.json").read_text())


@pytest.mark.parametrize("scenario", THEIRS["found"])
@pytest.mark.chaos
def test_finds_what_tensorflowonspark_finds(ours, scenario):
    assert ours[scenario] == THEIRS["found"][scenario]
