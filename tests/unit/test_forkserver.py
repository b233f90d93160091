"""Processes that a fork server forks are what fresh ones are, and it leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest
from conftest import ends, lives, wait_until

from tfos_ml.agent import fork_client
from tfos_ml.agent.child_process import child_environment
from tfos_ml.agent.fork_client import ForkedProcess, ForkServerRef, start_process
from tfos_ml.inference.tensorflow_import import PRELOADS
from tfos_ml.worker.fork_server import NO_MARKER

pytestmark = pytest.mark.slow
DEADLINE = 60.0


@pytest.fixture
def owner():
    """A process whose fork servers end with it."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait(DEADLINE)
    assert wait_until(lambda: not servers(process.pid), DEADLINE)
    assert not list(directories(process.pid))


@pytest.fixture
def start(owner, tmp_path):
    """Starts a function of ``forked.py``; what it prints is in a file."""
    started = []

    def start(function, *arguments, environment=(), idle_seconds=300.0, **more):
        output = tmp_path / f"output-{len(started)}"
        variables = child_environment(NO_MARKER, 1, {PRELOADS: "0", **dict(environment)})
        with open(os.devnull, "rb") as nothing, open(output, "wb") as file:
            fork_server = ForkServerRef(owner.pid, idle_seconds)
            process = start_process(
                "forked", [function, *arguments], variables, nothing, file, fork_server, "a fork", **more
            )
        process.output = output
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(DEADLINE)


def run(start, *arguments, **options):
    process = start(*arguments, **options)
    code = process.wait(DEADLINE)
    assert code == 0, process.output.read_text()
    return process.output.read_text()


def told(start, *names, **options):
    return json.loads(run(start, "tell", *names, **options))


def directories(owner):
    return Path(os.environ["TMPDIR"]).glob(f"tfos_ml-forkserver-{owner}-*")


def servers(owner):
    """The fork servers of an owner, without what they have forked."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if "tfos_ml.worker.fork_server" in command and command[-4] == str(owner) and process.ppid() == 1:
                found.append(process)
    return found


def is_forked(process):
    return isinstance(process, ForkedProcess)


class TestForkedProcess:
    def test_is_as_a_fresh_one(self, start, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        names = ["arguments", "environment", "directory", "path", "main", "limits", "affinity", "handlers", "threads"]
        names += ["temporary", "input"]
        environment = {"OF_THE_USER": "1", "TMPDIR": str(tmp_path)}
        forked = told(start, *names, environment=environment)
        fresh = told(start, *names, environment=environment, idle_seconds=0)
        assert (forked.pop("main"), fresh.pop("main")) == ("forked", "__main__")
        assert list(dict.fromkeys(forked.pop("path"))) == list(dict.fromkeys(fresh.pop("path")))
        assert forked == fresh

    def test_has_no_descriptor_of_others(self, start):
        start("wait")
        start("wait", outlives_requester=True)
        found = told(start, "descriptors")["descriptors"]
        assert sum(name.startswith("socket:") for name in found) == 1  # over which it tells its exit code


class TestServer:
    def test_serves_one_after_the_other(self, start, owner):
        start("end", "0").wait(DEADLINE)
        (server,) = servers(owner.pid)
        descriptors = server.num_fds()  # with those of the first process, if that has not been waited for
        for _ in range(10):
            process = start("end", "0")
            assert is_forked(process)
            assert process.wait(DEADLINE) == 0
        assert servers(owner.pid) == [server]
        # Modules that it imports when there is time may keep a file open; each process would have left one, too.
        assert wait_until(lambda: server.num_fds() < descriptors + 5 and not server.children(), DEADLINE)

    def test_ends_with_its_owner_though_processes_are_left(self, start, owner):
        process = start("wait")
        (server,) = servers(owner.pid)
        owner.kill()
        assert ends(server.pid, DEADLINE)
        assert not list(directories(owner.pid))
        assert lives(process.pid)  # who asked for it lives

    def test_that_does_not_answer_is_killed_and_replaced_by_a_fresh_process(self, start, owner, monkeypatch):
        running = start("wait")
        server = servers(owner.pid)[0]
        server.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(fork_client, "FORK_ANSWER_SECONDS", 1.0)
        process = start("end", "0")
        assert not is_forked(process)
        assert process.wait(DEADLINE) == 0
        assert ends(server.pid, DEADLINE)
        assert running.poll() is None


class TestFreshInstead:
    def test_of_what_is_read_at_start_a_server_has_its_own(self, start, owner):
        start("end", "0")
        known = told(start, "environment", environment={"KERAS_BACKEND": "numpy"})
        assert known["environment"]["KERAS_BACKEND"] == "numpy"
        assert len(servers(owner.pid)) == 2

    @pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
    def test_where_another_user_asks(self, start, owner, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # which others may enter
        start("end", "0").wait(DEADLINE)
        (directory,) = Path("/tmp").glob(f"tfos_ml-forkserver-{owner.pid}-*")
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / "socket").stat().st_mode & 0o777 == 0o600
        directory.chmod(0o711)
        (directory / "socket").chmod(0o666)
        program = f"import socket; s = socket.socket(1); s.connect({str(directory / 'socket')!r}); print(s.recv(9))"
        done = subprocess.run(["/usr/bin/python3", "-c", program], user=65534, capture_output=True, timeout=DEADLINE)
        assert done.stdout == b"b''\n", done.stderr
