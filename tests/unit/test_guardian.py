import contextlib
import os
import signal
import subprocess
import sys

import pytest
from conftest import ends, lives

from tfos_ml.agent.child_process import new_marker
from tfos_ml.agent.reaper import Reaper
from tfos_ml.worker.fork_server import MARKER

pytestmark = pytest.mark.slow


SUPERVISOR = """
import os, subprocess, sys
from tfos_ml.agent.reaper import Reaper
from tfos_ml.worker.fork_server import MARKER

_, marker, *directories = sys.argv
guardian = Reaper(marker)
guardian.guard(directories=directories)
silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
environment = {**os.environ, MARKER: marker}
child = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True, **silent)
guardian.guard(pid=child.pid)
print(child.pid, guardian._process.pid, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def supervisor(*directories):
    """A process that has a guardian and a child, as a node's supervisor has; the pids of these."""
    command = [sys.executable, "-c", SUPERVISOR, new_marker(), *map(str, directories)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, **pipes) as process:
        child, guardian = map(int, process.stdout.readline().split())
        try:
            yield process, child, guardian
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(guardian, signal.SIGCONT)
            ends(guardian)


def test_old_guardian_spares_the_next_attempt_of_the_same_task(tmp_path):
    """Spark starts a stage again while the guardians of its first attempt are still at work."""
    directory = tmp_path / "spool"
    directory.mkdir()
    (directory / "chunk").write_text("rows")
    with supervisor(directory) as (process, child, guardian):
        os.kill(guardian, signal.SIGSTOP)  # it is slow
        process.kill()
        with supervisor() as (_, another, _):
            os.kill(guardian, signal.SIGCONT)
            assert ends(guardian)
            assert ends(child)
            assert not directory.exists()
            assert lives(another)


def test_finish_does_the_work_of_a_guardian_that_was_killed(tmp_path):
    guardian = Reaper(marker := new_marker())
    guardian.guard(directories=[str(tmp_path)])
    with subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: marker}, start_new_session=True) as child:
        guardian._process.kill()
        guardian._process.wait()
        assert not guardian.finish(report=True)
    assert child.returncode == -signal.SIGKILL
    assert not tmp_path.exists()
