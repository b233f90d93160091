"""The import contract of pyproject.toml: imports point downwards only, and TensorFlow stays where it belongs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def check(tmp_path):
    """Checks a copy of the package into which lines have been put, by module."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "tfos_ml", tmp_path / "tfos_ml", ignore=shutil.ignore_patterns("__pycache__"))

    def run(lines):
        for module, line in lines.items():
            with open(tmp_path / "tfos_ml" / module, "a") as file:
                file.write(f"\n{line}\n")
        program = "from importlinter.cli import lint_imports_command as run; run()"
        command = [sys.executable, "-c", program, "--no-cache"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    return run


def test_the_package_keeps_it(check):
    done = check({})
    assert (done.returncode, "0 broken" in done.stdout) == (0, True), done.stdout


BREAKING = {  # upwards, to the stages, sideways, and others' packages, of which TensorFlow is imported later
    "data/schema.py": ("from tfos_ml.driver import run", "tfos_ml.data is not allowed to import tfos_ml.driver"),
    "agent/supervisor.py": ("from tfos_ml.stages.params import TrainingParams", "tfos_ml.agent is not allowed"),
    "keras/training.py": (
        "from tfos_ml.driver import progress",
        "tfos_ml.keras is not allowed to import tfos_ml.driver",
    ),
    "driver/run.py": ("def _later():\n    import tensorflow", "tfos_ml.driver is not allowed to import tensorflow"),
    "data/arrow.py": ("import mlflow", "tfos_ml.data is not allowed to import mlflow"),
    "worker/main.py": ("def _later():\n    import pyspark", "tfos_ml.worker is not allowed to import pyspark"),
}


def test_lines_that_break_it_are_named(check):
    done = check({module: line for module, (line, _) in BREAKING.items()})
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert [broken for _, broken in BREAKING.values() if broken not in said] == [], done.stdout
