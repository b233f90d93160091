"""What executors lack is told before a node is sent there."""

import platform
import re
import subprocess
import sys
from types import SimpleNamespace

import cloudpickle
import pytest

from tfos_ml.common.interpreter import use_own_python
from tfos_ml.driver import executor_check
from tfos_ml.errors import ClusterConfigError

HERE = {"host": "host-7", "python": platform.python_version(), "path": "/usr/bin/python3", "missing": []}


def session(python):
    """A local session whose Python workers run a program."""
    context = SimpleNamespace(applicationId=f"local-{python}", pythonExec=str(python))
    return SimpleNamespace(sparkContext=context, conf=SimpleNamespace(get=lambda name, default: "local[2]"))


def test_a_python_without_packages_is_named(tmp_path):
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')  # neither PYTHONPATH nor site-packages
    bare.chmod(0o755)
    with pytest.raises(ClusterConfigError) as caught:
        executor_check.check_executors(session(bare), 2)
    paths = f"Python \\(.*/python.*has no package tfos_ml or tensorflow .*driver's is {sys.executable}.*PYSPARK_PYTHON"
    assert re.search(paths, str(caught.value))


@pytest.mark.parametrize(("named", "expected"), [(None, sys.executable), ("python3", "python3")])
def test_a_local_master_runs_the_drivers_python_unless_another_is_named(monkeypatch, named, expected):
    if named:
        monkeypatch.setenv("PYSPARK_PYTHON", named)
    else:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    local = session("python3")
    use_own_python(local)
    assert local.sparkContext.pythonExec == expected


def test_another_version_is_named():
    with pytest.raises(ClusterConfigError, match=r"3\.8\.1 on host-7.*is not the driver's"):
        executor_check.check_found({**HERE, "python": "3.8.1"})


def test_what_is_sent_to_executors_needs_no_package(tmp_path):
    look, _ = executor_check._functions()
    sent = tmp_path / "look"
    sent.write_bytes(cloudpickle.dumps(look))
    program = (
        "import sys; sys.modules['tfos_ml'] = None; import cloudpickle\n"
        f"print(cloudpickle.load(open({str(sent)!r}, 'rb'))({executor_check.NEEDED[1:]}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert '"missing": []' in done.stdout, done.stderr
