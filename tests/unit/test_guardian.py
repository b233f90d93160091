import contextlib
import json
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
DEADLINE = 60.0


SUPERVISOR = """
import json, os, subprocess, sys
from tfos_ml.agent.reaper import Reaper
from tfos_ml.worker.fork_server import MARKER

given = json.loads(sys.argv[1])
guardian = Reaper(given["marker"])
guardian.guard(directories=given["directories"])
silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
environment = {**os.environ, MARKER: given["marker"]}
child = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True, **silent)
guardian.guard(pid=child.pid)
print(child.pid, guardian._process.pid, flush=True)
sys.stdin.read()
"""


class Supervisor:
    """A process that has a guardian and a child, as a node's supervisor has."""

    def __init__(self, **given):
        command = [sys.executable, "-c", SUPERVISOR, json.dumps({"marker": new_marker(), **given})]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.child, self.guardian = map(int, self.process.stdout.readline().split())

    def end(self):
        self.process.kill()
        self.process.wait(DEADLINE)
        self.process.stdin.close()
        self.process.stdout.close()
        for pid in (self.guardian, self.child):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        ends(self.guardian)


@pytest.fixture
def supervise():
    started = []

    def supervise(**given):
        started.append(Supervisor(**given))
        return started[-1]

    yield supervise
    for supervisor in started:
        supervisor.end()


@pytest.fixture
def directory(tmp_path):
    made = tmp_path / "spool"
    made.mkdir()
    (made / "chunk").write_text("rows")
    return made


class TestEndOfTheSupervisor:
    @pytest.mark.parametrize("is_killed", [True, False])
    def test_is_cleaned_up_after_however_it_came(self, supervise, directory, is_killed):
        node = supervise(directories=[str(directory), f"{directory}/not there"])
        assert lives(node.child)
        assert lives(node.guardian)
        if is_killed:
            node.process.kill()
        else:
            node.process.communicate(timeout=DEADLINE)
        assert ends(node.process.pid)
        assert ends(node.guardian)
        assert ends(node.child)
        assert not directory.exists()

    def test_old_guardian_spares_the_next_attempt_of_the_same_task(self, supervise, directory):
        """Spark starts a stage again while the guardians of its first attempt are still at work."""
        old = supervise(marker=new_marker(), directories=[str(directory)])
        os.kill(old.guardian, signal.SIGSTOP)  # it is slow
        old.process.kill()
        new = supervise(marker=new_marker(), directories=[])
        os.kill(old.guardian, signal.SIGCONT)
        assert ends(old.guardian)
        assert ends(old.child)
        assert not directory.exists()
        assert lives(new.child)


class TestFinish:
    @pytest.fixture
    def start(self):
        """Starts a process of a node; ends what is left."""
        started = []

        def start(marker):
            environment = {**os.environ, MARKER: marker}
            started.append(subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True))
            return started[-1]

        yield start
        for process in started:
            process.kill()
            process.wait(DEADLINE)

    def test_has_everything_cleaned_up_on_return(self, start, directory):
        guardian = Reaper("g-2")
        guardian.guard(directories=[str(directory)])
        child = start("g-2")
        assert guardian.finish(report=False)
        assert child.wait(DEADLINE) == -signal.SIGKILL
        assert not directory.exists()

    @pytest.mark.parametrize("is_known", [True, False])
    def test_does_the_work_of_a_guardian_that_was_killed(self, start, directory, is_known):
        guardian = Reaper("g-4")
        guardian.guard(directories=[str(directory)])
        child = start("g-4")
        guardian._process.kill()
        guardian._process.wait(DEADLINE)
        if is_known:
            guardian.guard(pid=child.pid)
        assert not guardian.finish(report=True)
        assert child.wait(DEADLINE) == -signal.SIGKILL
        assert not directory.exists()
