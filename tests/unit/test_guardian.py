import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import ends, lives, wait_until

from tfos_ml.agent.process import new_marker
from tfos_ml.agent.reaper import Reaper
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.template import make_template
from tfos_ml.worker.forkserver import MARKER

pytestmark = pytest.mark.slow
DEADLINE = 15.0


SUPERVISOR = """
import json, os, subprocess, sys
from tfos_ml.agent.reaper import Reaper
from tfos_ml.worker.forkserver import MARKER

given = json.loads(sys.argv[1])
guardian = Reaper(given["marker"], given["directories"], **given.get("watching", {}))
silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
environment = {**os.environ, MARKER: given["marker"]}
child = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True, **silent)
guardian.guard(pid=child.pid)
if "control" in given:
    guardian.guard(control=given["control"], rank=3)
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
            if psutil.pid_exists(pid):
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
    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None], ids=["SIGKILL", "SIGTERM", "exit"])
    def test_is_cleaned_up_after_however_it_came(self, supervise, directory, how):
        node = supervise(directories=[str(directory), f"{directory}/not there"])
        assert lives(node.child)
        assert lives(node.guardian)
        if how is None:
            node.process.communicate(timeout=DEADLINE)
        else:
            node.process.send_signal(how)
        assert ends(node.process.pid)
        assert ends(node.guardian)
        assert ends(node.child)
        assert not directory.exists()

    def test_by_a_signal_to_its_group_is_outlived(self, supervise, directory):
        node = supervise(directories=[str(directory)])
        os.killpg(node.process.pid, signal.SIGKILL)
        assert ends(node.guardian)
        assert ends(node.child)
        assert not directory.exists()

    def test_in_the_middle_of_a_message_is_cleaned_up_after(self, directory):
        read, write = os.pipe()
        with subprocess.Popen([sys.executable, "-m", "tfos_ml.agent.reaper"], stdin=read) as guardian:
            os.close(read)
            os.write(write, f'{{"marker": "g-cut", "directories": ["{directory}"]}}\n{{"control": '.encode())
            os.close(write)
            assert guardian.wait(DEADLINE) == 0
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
        guardian = Reaper("g-2", [str(directory)])
        child = start("g-2")
        assert guardian.finish(report=False)
        assert child.wait(DEADLINE) == -signal.SIGKILL
        assert not directory.exists()

    def test_deletes_nothing_else(self, directory):
        neighbour = Path(f"{directory}-2")
        neighbour.mkdir()
        Reaper("g-3", [str(directory)]).finish(report=False)
        assert neighbour.is_dir()

    @pytest.mark.parametrize("is_known", [True, False])
    def test_does_the_work_of_a_guardian_that_was_killed(self, start, directory, is_known):
        guardian = Reaper("g-4", [str(directory)])
        child = start("g-4")
        guardian._process.kill()
        guardian._process.wait(DEADLINE)
        if is_known:
            guardian.guard(pid=child.pid)
        assert not guardian.finish(report=True)
        assert child.wait(1) == -signal.SIGKILL
        assert not directory.exists()

    def test_does_the_work_of_a_guardian_that_is_frozen(self, start, directory, monkeypatch):
        monkeypatch.setattr("tfos_ml.agent.reaper.CLEANUP_TIMEOUT", 0.5)
        guardian = Reaper("g-5", [str(directory)])
        child = start("g-5")
        guardian.guard(pid=child.pid)
        guardian._process.send_signal(signal.SIGSTOP)
        for _ in range(70):  # of 1 KiB: more than a pipe holds
            guardian.guard(text="x" * 1000)
        assert not guardian.finish(report=True)
        assert child.wait(1) == -signal.SIGKILL
        assert not directory.exists()
        assert guardian._process.returncode == -signal.SIGKILL


class TestWatch:
    WATCH = 1.5

    def test_frozen_supervisor_is_ended_and_cleaned_up_after(self, supervise, directory):
        node = supervise(directories=[str(directory)], watching={"watch": self.WATCH, "frozen": "it is frozen"})
        node.process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        assert node.process.wait(DEADLINE) == -signal.SIGKILL
        assert self.WATCH / 2 < time.monotonic() - stopped < DEADLINE
        assert ends(node.guardian)
        assert ends(node.child)
        assert not directory.exists()

    def test_driver_is_told_before(self, supervise):
        server = ControlServer("127.0.0.1", make_template(4))
        try:
            watching = {"watch": self.WATCH, "frozen": "it is frozen"}
            node = supervise(directories=[], watching=watching, control=server.address)
            node.process.send_signal(signal.SIGSTOP)
            assert node.process.wait(DEADLINE) == -signal.SIGKILL
            assert server.nodes.failure() == "it is frozen"
            assert ends(node.guardian)
            assert server.nodes.wait_gone(DEADLINE)
        finally:
            server.close()

    def test_supervisor_that_lives_is_left_alone(self, supervise):
        node = supervise(directories=[], watching={"watch": self.WATCH})
        assert not ends(node.process.pid, seconds=2 * self.WATCH)
        assert lives(node.child)

    def test_freeze_of_all_together_is_not_blamed_on_the_supervisor(self, supervise):
        """As of a control group, or a virtual machine."""
        node = supervise(directories=[], watching={"watch": self.WATCH})
        both = [node.process.pid, node.guardian]
        for pid in both:
            os.kill(pid, signal.SIGSTOP)
        assert not ends(node.guardian, seconds=2 * self.WATCH)
        for pid in both:
            os.kill(pid, signal.SIGCONT)
        assert not ends(node.process.pid, seconds=2 * self.WATCH)
        assert lives(node.child)

    def test_pause_shorter_than_the_watch_is_forgiven(self, supervise):
        node = supervise(directories=[], watching={"watch": 3 * self.WATCH})
        node.process.send_signal(signal.SIGSTOP)
        assert not ends(node.process.pid, seconds=self.WATCH)
        node.process.send_signal(signal.SIGCONT)
        assert wait_until(lambda: psutil.Process(node.process.pid).status() != psutil.STATUS_STOPPED, DEADLINE)
        assert lives(node.child)
