"""``python -m tfos_ml doctor``, as users run it: on good set-ups, and on broken ones, each of which it names.

A good set-up and five broken ones are in ``make test``, the others in ``make chaos``: nearly each starts a Spark of its
own. The program of docs/howto/install.rst runs it in a session that is there already, too (tests/test_readme.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from connect_server import needs_connect_server
from elsewhere import interpreter_without

pytestmark = pytest.mark.timeout(150)
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


def test_a_good_session_is_all_green(run):
    done = run(*LOCAL, *PATIENT)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    *lines, summary = done.stdout.splitlines()
    assert {line[:4] for line in lines} <= {"ok  ", "WARN", "    "}, done.stdout
    assert "\x1b" not in done.stdout
    assert all(any(line[5:].startswith(f"{check}: ") for line in lines) for check in ALL), done.stdout
    assert "2 nodes meet: and reach each other" in done.stdout
    assert "32 rows, 32 predictions" in done.stdout
    assert " 0 failed, 0 skipped in " in summary


@pytest.mark.chaos
def test_several_executors_are_looked_at(report):
    found = report("--master", "local-cluster[2,1,1024]", "--conf", "spark.driver.host=127.0.0.1", *PATIENT)
    assert found.failed() == [], found.stdout
    assert found.findings["Artifacts"]["said"] == "2 of 2 tasks"
    assert found.findings["Local directories, executors"]["status"] == "ok"


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
    assert (one["check"], one["said"]) == ("Packages", "pyspark is not installed here")
    assert re.match(r"pip install 'pyspark[<>=.,\d]+', or 'tfos_ml\[all\]'$", one["advice"])


def test_no_java(report):
    found = report(*LOCAL, JAVA_HOME="/nowhere")
    one = found.only_failure()
    assert (one["check"], "JAVA_HOME=/nowhere has no bin/java" in one["said"]) == ("Java", True)
    assert found.findings["Spark session"]["status"] == "skipped"


@pytest.mark.chaos
def test_no_java_on_path_either(report, tmp_path):
    found = report(*LOCAL, JAVA_HOME=None, PATH=str(tmp_path))
    assert "there is no java on PATH" in found.only_failure()["said"]


def test_a_driver_host_that_does_not_resolve(report):
    found = report(*LOCAL, "--conf", "spark.driver.host=no-such-host.invalid", SPARK_LOCAL_IP=None)
    assert found.code == 1
    one = found.findings["spark.driver.host"]
    assert (one["status"], "no-such-host.invalid does not resolve" in one["said"]) == ("failed", True)


def test_a_python_of_the_executors_without_packages(report, tmp_path):
    venv.create(tmp_path / "bare", symlinks=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    one = report(*LOCAL, PYSPARK_PYTHON=bare, PYSPARK_DRIVER_PYTHON=sys.executable).only_failure()
    assert one["check"] == "Executors' Python"
    assert re.search(r"has no package .*\btensorflow\b", one["said"])
    assert "PYSPARK_PYTHON" in one["said"]


@pytest.mark.chaos
def test_a_python_of_the_executors_that_is_not_there(report):
    one = report(*LOCAL, PYSPARK_PYTHON="/nowhere/python", PYSPARK_DRIVER_PYTHON=sys.executable).only_failure()
    assert "/nowhere/python" in one["said"]
    assert "PYSPARK_PYTHON" in one["advice"]


def test_a_port_that_is_taken(report):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ["--conf", f"spark.tfos_ml.port={port}", "--conf", "spark.port.maxRetries=0"]
        one = report(*LOCAL, *settings).only_failure()
    assert one["check"] == "Driver's port"
    assert f"127.0.0.1:{port} cannot be listened on: [Errno 98] Address already in use" in one["said"]


@pytest.mark.chaos
def test_a_setting_that_would_break_fits(report):
    one = report(*LOCAL, "--conf", "spark.io.encryption.enabled=true").only_failure()
    assert (one["check"], "spark.io.encryption.enabled=true" in one["said"]) == ("Spark settings", True)


@pytest.mark.chaos
def test_a_directory_for_models_that_cannot_be_written_to(report, tmp_path):
    file = tmp_path / "file"
    file.touch()
    found = report(*LOCAL, *PATIENT, "--dir", str(file / "models"))
    one = found.only_failure()
    assert (one["check"], "the driver cannot write to" in one["said"]) == ("Storage", True)
    assert found.findings["Fit and transform"]["status"] == "skipped"


@pytest.mark.chaos
def test_an_older_package(report, tmp_path):
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), "tqdm==4.60.0"]
    subprocess.run(install, check=True, timeout=100)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    one = report(*LOCAL, *PATIENT, PYTHONPATH=path, JAVA_HOME=None).only_failure()
    assert (one["check"], one["said"]) == ("Packages", "tqdm 4.60.0 is installed here, expected >=4.66")


def in_small_filesystem(directory, size):
    """A command that runs the rest in a mount namespace with a filesystem of a size, as containers have them."""
    script = f'mount -t tmpfs -o size={size} tmpfs {directory} && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    return command


@pytest.mark.chaos
def test_a_local_directory_without_room(report, tmp_path):
    (tmp_path / "small").mkdir()
    small = str(tmp_path / "small")
    found = report(*LOCAL, *PATIENT, before=in_small_filesystem(small, "100m"), SPARK_LOCAL_DIRS=small)
    one = found.only_failure()
    assert one["check"] == "Local directories, this host"
    assert f"{small} has 100 MiB free" in one["said"]
    assert "SPARK_LOCAL_DIRS" in one["advice"]


@pytest.mark.chaos
def test_little_shared_memory(report):
    found = report(*LOCAL, *PATIENT, before=in_small_filesystem("/dev/shm", "64m"))  # as Docker has it
    one = found.findings["Shared memory, this host"]
    assert (one["status"], "/dev/shm has 64 MiB free" in one["said"], "--shm-size" in one["advice"]) == (
        "warning",
        True,
        True,
    )
    assert found.failed() == [], found.stdout


@pytest.mark.chaos
def test_a_master_that_does_not_answer(report):
    found = report("--master", "spark://127.0.0.1:1", "--seconds", "20")
    one = found.only_failure()
    assert one["check"] == "Spark session"
    assert "--master" in one["advice"]


@pytest.mark.chaos
def test_a_connect_server_that_is_not_there(report):
    one = report("--remote", "sc://127.0.0.1:1", "--seconds", "20").only_failure()
    assert (one["check"], "--remote" in one["advice"]) == ("Spark session", True)


# The command


def test_colors_on_a_terminal_only(run, tmp_path):
    script = ["script", "--quiet", "--return", "--command", "env JAVA_HOME=/nowhere " + sys.executable]
    if shutil.which("script") is None:
        pytest.skip("needs the program script")
    script[-1] += " -m tfos_ml doctor --master local[2]"
    done = subprocess.run(
        [*script, str(tmp_path / "typescript")], capture_output=True, text=True, timeout=60, check=False
    )
    assert "\x1b[31mFAIL\x1b[0m Java" in done.stdout
    assert "\x1b[32mok  \x1b[0m Python" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("arguments", [["--conf", "spark.cores"], ["--nodes", "0"], ["--master", "a", "--remote", "b"]])
def test_arguments_that_are_none(arguments, capsys):
    from tfos_ml.doctor.command import main

    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m tfos_ml doctor")


# In a program that has a session


def test_too_few_slots(spark, capsys):
    from tfos_ml.doctor.command import main

    assert main(["doctor", "--json", "--nodes", "5"]) == 1
    (one,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["status"] == "failed"]
    assert (one["check"], "--nodes=5 needs 5 task slots" in one["said"]) == ("Task slots", True)
    assert one["advice"]
    assert spark.range(3).count() == 3


@pytest.mark.chaos
def test_the_session_of_a_program_goes_on(spark, capsys):
    from tfos_ml.doctor.command import main

    assert main(["doctor", "--json", *PATIENT]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is True
    assert "local[4]" in next(one["said"] for one in content["findings"] if one["check"] == "Spark session")
    assert spark.range(3).count() == 3
