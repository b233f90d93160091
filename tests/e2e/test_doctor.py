"""``python -m tfos_ml doctor``, as users run it: on good set-ups, and on broken ones, each of which it names.

Other masters are in ``make chaos``: nearly each test starts a Spark of its own. The program of docs/howto/doctor.rst
runs it in a session that is there already (tests/test_readme.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from connect_server import needs_connect_server
from elsewhere import interpreter_without

SECONDS = 60  # what it promises
LOCAL = ("--master", "local[2]")
PATIENT = ("--seconds", "110")  # where all checks have to succeed, whatever else this machine does
ALL = ("Python", "Packages", "Java", "Spark session", "Task slots", "Executors' Python", "Executors to driver")


class Report:
    """What it has found: findings by check, the exit code and both streams."""

    def __init__(self, done):
        self.code, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr
        self.content = json.loads(done.stdout)
        self.findings = {one["check"]: one for one in self.content["findings"]}
        assert self.content["seconds"] < (SECONDS if PATIENT[0] not in done.args else SECONDS + 60)
        assert self.content["ok"] is (self.code == 0)

    def failed(self):
        return [one for one in self.content["findings"] if one["status"] == "failed"]

    def only_failure(self):
        """The one red line, which says what to do."""
        (one,) = self.failed()
        assert self.code == 1
        assert one["advice"], one
        return one


@pytest.fixture
def run(tmp_path):
    """Run the command in a directory of its own, which it leaves empty."""
    directory = tmp_path / "working"
    directory.mkdir()

    def run(*arguments, before=(), python=sys.executable, **environment):
        given = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment}
        done = subprocess.run(
            [*before, python, "-m", "tfos_ml", "doctor", *arguments],
            env={name: value for name, value in given.items() if value is not None},
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=SECONDS + 70,
            check=False,
        )
        assert list(directory.iterdir()) == []
        return done

    return run


@pytest.fixture
def report(run):
    return lambda *arguments, **more: Report(run(*arguments, "--json", **more))


# Good ones


@pytest.mark.chaos  # test_readme.py has it in a session that is there
def test_a_good_session_is_all_green(run):
    done = run(*LOCAL, *PATIENT)
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stderr
    *lines, summary = done.stdout.splitlines()
    assert {line[:4] for line in lines} <= {"ok  ", "WARN", "    "}, done.stdout
    assert all(any(line[5:].startswith(f"{check}: ") for line in lines) for check in ALL), done.stdout
    assert "32 rows, 32 predictions" in done.stdout
    assert " 0 failed, 0 skipped in " in summary


@pytest.mark.chaos
def test_several_executors_are_looked_at(report):
    found = report("--master", "local-cluster[2,1,1024]", "--conf", "spark.driver.host=127.0.0.1", *PATIENT)
    assert found.failed() == [], found.stdout
    assert found.findings["Local directory, executors"]["status"] == "ok"


@pytest.mark.chaos
@needs_connect_server
def test_a_client_of_spark_connect(report, connect_server):
    # An address of the documentation's own network, which nobody has: executors cannot reach it.
    found = report(
        "--remote", connect_server.url, "--conf", "spark.tfos_ml.clientHost=192.0.2.1", *PATIENT, JAVA_HOME="/nowhere"
    )
    assert found.failed() == [], found.stdout
    assert found.findings["Executors to driver"]["status"] == "warning"
    assert "spark.tfos_ml.clientHost" in found.findings["Executors to driver"]["advice"]
    assert found.findings["Task slots"]["status"] == "skipped"
    assert found.findings["Fit and transform"]["status"] == "ok"


# Broken ones


def test_no_pyspark(report, tmp_path):
    """Red before: a ModuleNotFoundError with its traceback; the advice had a marker, which pip leaves out."""
    python = interpreter_without(tmp_path / "venv", "pyspark", "py4j")
    one = report(python=python, PYTHONPATH=str(Path(__file__).parents[2])).only_failure()
    assert (one["check"], one["message"]) == ("Packages", "pyspark is not installed here")
    assert re.match(r"pip install 'pyspark[<>=.,\d]+', or 'tfos_ml\[all\]'$", one["advice"])


def test_no_java(report):
    found = report(*LOCAL, JAVA_HOME="/nowhere", DATABRICKS_RUNTIME_VERSION="16.4")
    one = found.only_failure()
    assert (one["check"], "JAVA_HOME=/nowhere has no bin/java" in one["message"]) == ("Java", True)
    assert found.findings["Spark session"]["status"] == "skipped"
    assert found.findings["Platform"]["message"] == "Databricks 16.4"
    assert "mlflow==" in found.findings["Platform"]["advice"]


def test_a_python_of_the_executors_without_packages(report, tmp_path):
    venv.create(tmp_path / "bare", symlinks=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    one = report(*LOCAL, PYSPARK_PYTHON=bare, PYSPARK_DRIVER_PYTHON=sys.executable).only_failure()
    assert one["check"] == "Executors' Python"
    assert re.search(r"has no package .*\btensorflow\b", one["message"])
    assert "PYSPARK_PYTHON" in one["message"]


# The command


@pytest.mark.parametrize("arguments", [["--conf", "spark.cores"], ["--nodes", "0"], ["--master", "a", "--remote", "b"]])
def test_arguments_that_are_none(arguments, capsys):
    from tfos_ml.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m tfos_ml doctor")


# In a program that has a session


def test_too_few_slots(spark, capsys):
    from tfos_ml.__main__ import main

    assert main(["doctor", "--json", "--nodes", "5"]) == 1
    (one,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["status"] == "failed"]
    assert (one["check"], "--nodes=5 needs 5 task slots" in one["message"]) == ("Task slots", True)
    assert one["advice"]
    assert spark.range(3).count() == 3
