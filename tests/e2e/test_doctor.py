"""``python -m tfos_ml doctor``, as users run it: on good set-ups, and on broken ones, each of which it names.

The program of docs/howto/doctor.rst runs it in a session that is there already (tests/test_readme.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from elsewhere import interpreter_without

from tfos_ml.__main__ import main

SECONDS = 60  # what it promises


def only_failure(done):
    """The one red line, which says what to do; and all findings by check."""
    content = json.loads(done.stdout)
    assert (content["ok"], done.returncode) == (False, 1)
    assert content["seconds"] < SECONDS
    (one,) = [one for one in content["findings"] if one["status"] == "failed"]
    assert one["advice"], one
    return one, {one["check"]: one for one in content["findings"]}


@pytest.fixture
def run(tmp_path):
    """Run the command in a directory of its own, which it leaves empty."""
    directory = tmp_path / "working"
    directory.mkdir()

    def run(*arguments, python=sys.executable, **environment):
        done = subprocess.run(
            [python, "-m", "tfos_ml", "doctor", *arguments],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=SECONDS + 70,
            check=False,
        )
        assert list(directory.iterdir()) == []
        return done

    return run


@pytest.mark.chaos  # test_readme.py has it in a session that is there
def test_a_good_session_is_all_green(run):
    done = run("--master", "local[2]", "--seconds", "110")
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stderr
    assert {line[:4] for line in done.stdout.splitlines()[:-1]} <= {"ok  ", "WARN", "    "}, done.stdout
    assert "32 rows, 32 predictions" in done.stdout


def test_no_pyspark(run, tmp_path):
    """Red before: a ModuleNotFoundError with its traceback; the advice had a marker, which pip leaves out."""
    python = interpreter_without(tmp_path / "venv", "pyspark", "py4j")
    one, _ = only_failure(run("--json", python=python, PYTHONPATH=str(Path(__file__).parents[2])))
    assert (one["check"], one["message"]) == ("Packages", "pyspark is not installed here")
    assert re.match(r"pip install 'pyspark[<>=.,\d]+', or 'tfos_ml\[all\]'$", one["advice"])


def test_no_java(run):
    one, found = only_failure(
        run("--master", "local[2]", "--json", JAVA_HOME="/nowhere", DATABRICKS_RUNTIME_VERSION="16.4")
    )
    assert (one["check"], "JAVA_HOME=/nowhere has no bin/java" in one["message"]) == ("Java", True)
    assert found["Spark session"]["status"] == "skipped"
    assert found["Platform"]["message"] == "Databricks 16.4"
    assert "mlflow==" in found["Platform"]["advice"]


def test_too_few_slots_and_an_argument_that_is_none(spark, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--nodes", "0"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m tfos_ml doctor")
    assert main(["doctor", "--json", "--nodes", "5"]) == 1
    (one,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["status"] == "failed"]
    assert (one["check"], "--nodes=5 needs 5 task slots" in one["message"]) == ("Task slots", True)
    assert one["advice"]
    assert spark.range(3).count() == 3
