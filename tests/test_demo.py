"""The demo, as ``make demo`` runs it: trains, predicts, draws and says where things are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "digits.py"


@pytest.mark.chaos  # make notebooks and CI run it; README's program, in make test, does the same on other rows
def test_demo_trains_predicts_and_draws(tmp_path, monkeypatch):
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")  # with Spark's own daemon, as ``make demo``
    demo = subprocess.run(
        [sys.executable, str(DEMO), "--output", "pictures"], cwd=tmp_path, capture_output=True, text=True, timeout=460
    )
    assert demo.returncode == 0, demo.stderr
    found = re.search(r"Accuracy on (\d+) held-out digits: ([\d.]+)", demo.stdout)
    assert int(found[1]) > 300
    assert float(found[2]) >= 0.95
    assert "Epoch 15/15 [worker:0] accuracy: " in demo.stderr
    assert "FutureWarning" not in demo.stderr  # what a newcomer sees first
    assert_picture(tmp_path / "pictures" / "training.png")
    assert_picture(tmp_path / "pictures" / "digits.png")
    last_line = demo.stdout.splitlines()[-1]
    assert "pictures/training.png" in last_line
    assert "Next:" in last_line


def assert_picture(path):
    """A picture of a useful size that is not of one color."""
    import matplotlib.image

    pixels = matplotlib.image.imread(path)
    assert min(pixels.shape[:2]) > 300
    assert pixels[..., :3].std() > 0.1
