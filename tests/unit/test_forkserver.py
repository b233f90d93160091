"""Processes that a fork server forks are what fresh ones are, and it leaves nothing behind."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import cloudpickle
import psutil
import pytest
from conftest import ends, lives, wait_until

from tfos_ml.agent import fork_client
from tfos_ml.agent.fork_client import ForkedProcess, Forking, start_process
from tfos_ml.agent.process import child_environment, kill_tree, new_marker
from tfos_ml.inference.tensorflow_import import PRELOADS, USES_KERAS
from tfos_ml.protocol.codec import encode
from tfos_ml.protocol.frames import send_frame
from tfos_ml.worker.forkserver import MARKER, NO_MARKER, Request

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

    def start(
        function, *arguments, environment=(), idle_seconds=300.0, marker=NO_MARKER, application="", asker=None, **more
    ):
        output = tmp_path / f"output-{len(started)}"
        variables = child_environment(marker, 1, {PRELOADS: "0", **dict(environment)})
        with open(os.devnull, "rb") as nothing, open(output, "wb") as file:
            forking = Forking(asker or owner.pid, idle_seconds, application)
            process = start_process(
                "forked", [function, *arguments], variables, nothing, file, forking, "a fork", **more
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
            if "tfos_ml.worker.forkserver" in command and command[-4] == str(owner) and process.ppid() == 1:
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

    def test_leads_a_session_and_shows_its_marker(self, start):
        marker = new_marker()
        known = told(start, "session", "group", "shown", marker=marker)
        assert known["session"] == known["group"]
        assert f"{MARKER}={marker}" in known["shown"]

    def test_has_no_descriptor_of_others(self, start):
        start("wait")
        start("wait", outlives_requester=True)
        found = told(start, "descriptors")["descriptors"]
        assert sum(name.startswith("socket:") for name in found) == 1  # over which it tells its exit code

    def test_two_have_not_the_same_random_numbers(self, start):
        first, second = (told(start, "random")["random"] for _ in range(2))
        assert not set(first) & set(second)

    @pytest.mark.parametrize(
        ("function", "argument", "code"), [("end", "0", 0), ("end", "3", 3), ("leave", "4", 4), ("die", "11", -11)]
    )
    def test_tells_how_it_ended(self, start, function, argument, code):
        process = start(function, argument)
        assert is_forked(process)
        assert process.wait(DEADLINE) == process.poll() == code

    def test_that_raises_shows_the_traceback(self, start):
        process = start("fail")
        assert process.wait(DEADLINE) == 1
        assert process.output.read_text().endswith("RuntimeError: this one fails\n")

    def test_runs_until_it_is_killed(self, start):
        process = start("wait")
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.kill()
        assert process.wait(DEADLINE) == -signal.SIGKILL

    def test_is_found_by_its_marker(self, start):
        marker = new_marker()
        process = start("wait", marker=marker)
        assert wait_until(lambda: psutil.Process(process.pid).environ().get(MARKER) == marker, DEADLINE)
        kill_tree(None, marker)
        assert process.wait(DEADLINE) == -signal.SIGKILL
        assert is_forked(start("end", "0"))  # the server is still there


class TestServer:
    def test_serves_one_after_the_other(self, start, owner):
        run(start, "end", "0")
        (server,) = servers(owner.pid)
        descriptors = server.num_fds()  # with those of the first process, if that has not been waited for
        for _ in range(30):
            process = start("end", "0")
            assert is_forked(process)
            assert process.wait(DEADLINE) == 0
        assert servers(owner.pid) == [server]
        # Modules that it imports when there is time may keep a file open; each process would have left one, too.
        assert wait_until(lambda: server.num_fds() < descriptors + 10 and not server.children(), DEADLINE)

    def test_has_its_socket_in_a_directory_of_any_length(self, start, owner, tmp_path, monkeypatch):
        """As those of YARN's containers have it; a socket's address has 107 bytes."""
        directory = tmp_path / ("usercache-" * 12)
        directory.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(directory))
        assert is_forked(start("end", "0"))
        assert is_forked(start("end", "0"))
        assert len(servers(owner.pid)) == 1

    def test_started_by_many_at_once_is_one(self, start, owner):
        program = (
            "import os, sys; from tfos_ml.agent.fork_client import *; from tfos_ml.agent.process import *;"
            "forking = Forking(int(sys.argv[1]), 300); variables = child_environment('0' * 32, 1, {});"
            "process = start_process('forked', ['end', '7'], variables, 0, 1, forking);"
            "sys.exit(type(process) is not ForkedProcess or process.wait(60) - 7)"
        )
        command = [sys.executable, "-c", program, str(owner.pid)]
        environment = child_environment(NO_MARKER, 1, {PRELOADS: "0"})
        many = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) for _ in range(4)]
        assert [one.wait(DEADLINE) for one in many] == [0, 0, 0, 0]
        assert len(servers(owner.pid)) == 1

    def test_ends_with_its_owner_though_processes_are_left(self, start, owner):
        process = start("wait")
        (server,) = servers(owner.pid)
        owner.kill()
        assert ends(server.pid, DEADLINE)
        assert not list(directories(owner.pid))
        assert lives(process.pid)  # who asked for it lives

    def test_of_an_application_ends_with_the_last_that_uses_it(self, start, owner):
        with subprocess.Popen(["sleep", "600"]) as executor:
            assert is_forked(start("end", "0", application="one"))
            (server,) = servers(owner.pid)
            assert is_forked(start("end", "0", application="one", asker=executor.pid))
            assert servers(executor.pid) == []
            owner.kill()
            owner.wait(DEADLINE)
            assert is_forked(start("end", "0", application="one", asker=executor.pid))
            assert servers(owner.pid) == [server]
            executor.kill()
            assert ends(server.pid, DEADLINE)

    def test_is_not_that_of_another_application(self, start, owner):
        assert is_forked(start("end", "0", application="one"))
        assert is_forked(start("end", "0", application="other"))
        assert is_forked(start("end", "0"))
        assert len(servers(owner.pid)) == 3

    def test_of_an_application_that_was_killed_leaves_no_directory(self, start, owner):
        assert is_forked(start("end", "0", application="one"))
        (server,) = servers(owner.pid)
        directory = Path(server.cmdline()[-6]).parent
        server.kill()
        assert ends(server.pid, DEADLINE)
        assert directory.exists()
        assert is_forked(start("end", "0", application="other"))  # the next one sweeps
        assert not directory.exists()

    def test_of_an_application_with_other_packages_is_not_forced_on_who_asks(self, start, owner, tmp_path):
        """Which then starts its own, as if it were alone on its host."""
        assert is_forked(start("end", "0", application="one"))
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "forked.py").write_text("def main(arguments):\n    raise SystemExit(9)\n")
        (tmp_path / "elsewhere" / "cloudpickle").symlink_to(Path(cloudpickle.__file__).parent)
        path = os.pathsep.join([str(tmp_path / "elsewhere"), child_environment(NO_MARKER, 1, {})["PYTHONPATH"]])
        process = start("end", "0", application="one", environment={"PYTHONPATH": path})
        assert process.wait(DEADLINE) == 9

    def test_ends_when_idle_and_the_next_is_started(self, start, owner):
        assert is_forked(start("end", "0", idle_seconds=1))
        (server,) = servers(owner.pid)
        assert ends(server.pid, DEADLINE)
        assert not list(directories(owner.pid))
        assert is_forked(start("end", "0", idle_seconds=300))

    def test_does_not_end_as_idle_while_a_process_runs(self, start, owner):
        process = start("wait", idle_seconds=0.3)
        (server,) = servers(owner.pid)
        assert not ends(server.pid, seconds=1.5)
        process.kill()
        assert ends(server.pid, DEADLINE)

    def test_killed_while_a_process_runs_spares_it(self, start, owner):
        process = start("wait")
        servers(owner.pid)[0].kill()
        assert not ends(process.pid, seconds=0.2)
        assert is_forked(start("end", "0"))  # of the next server
        process.kill()
        assert process.wait(DEADLINE) == -signal.SIGKILL

    def test_stopped_before_the_end_of_a_process_does_not_change_its_code(self, start, owner, tmp_path):
        """As the process tells it itself."""
        os.mkfifo(tmp_path / "go")
        process = start("end_later", str(tmp_path / "go"), "5")
        (server,) = servers(owner.pid)
        server.send_signal(signal.SIGSTOP)
        (tmp_path / "go").write_text("on")
        assert process.wait(DEADLINE) == 5
        server.send_signal(signal.SIGCONT)

    def test_that_does_not_answer_is_not_waited_for(self, start, owner, monkeypatch):
        start("end", "0")
        server = servers(owner.pid)[0]
        server.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(fork_client, "ANSWER_SECONDS", 0.5)
        process = start("end", "0")
        server.send_signal(signal.SIGCONT)
        assert not is_forked(process)
        assert process.wait(DEADLINE) == 0

    def test_that_stands_still_is_left_for_good_within_seconds(self, start, owner, monkeypatch):
        running = start("wait")
        server = servers(owner.pid)[0]
        server.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(fork_client, "STILL_SECONDS", 1.0)
        assert is_forked(start("end", "0"))  # of another server
        assert ends(server.pid, DEADLINE)
        assert len([process for process in servers(owner.pid) if process.pid != running.pid]) == 1
        assert running.poll() is None

    def test_that_stands_still_and_cannot_be_ended_is_not_asked_again(self, start, owner, monkeypatch):
        start("end", "0")
        server = servers(owner.pid)[0]
        server.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(fork_client, "STILL_SECONDS", 1.0)
        monkeypatch.setattr(fork_client, "SIGKILL", 0)  # as if a filesystem hung
        assert is_forked(start("end", "0"))
        monkeypatch.setattr(fork_client, "STILL_SECONDS", DEADLINE)
        assert is_forked(start("end", "0"))
        assert len(servers(owner.pid)) == 2
        server.kill()

    def test_ends_processes_of_a_requester_that_died(self, start, owner, tmp_path):
        program = (
            "import sys; from tfos_ml.agent.fork_client import *; from tfos_ml.agent.process import *;"
            "process = start_process('forked', ['wait'], child_environment('0' * 32, 1, {}), 0, 2,"
            "Forking(int(sys.argv[1]), 300)); print(process.pid, flush=True); sys.stdin.read()"
        )
        command = [sys.executable, "-c", program, str(owner.pid)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        environment = child_environment(NO_MARKER, 1, {PRELOADS: "0"})
        with subprocess.Popen(command, env=environment, **pipes) as requester:
            pid = int(requester.stdout.readline())
            assert lives(pid)
            requester.kill()
        assert ends(pid, DEADLINE)


class TestFreshInstead:
    @pytest.mark.parametrize("name", ["TF_DETERMINISTIC_OPS", "KERAS_BACKEND"])
    def test_of_what_is_read_at_start_a_server_has_its_own(self, start, owner, name):
        value = "numpy" if name == "KERAS_BACKEND" else "1"
        start("end", "0")
        known = told(start, "environment", environment={name: value})
        assert known["environment"][name] == value
        assert len(servers(owner.pid)) == 2

    @pytest.mark.parametrize("name", ["CUDA_HOME", "PYTHONHASHSEED", "LC_ALL", "LD_PRELOAD", "OMP_NUM_THREADS", "TZ"])
    def test_what_else_is_read_at_start(self, name):
        assert fork_client._is_read_at_start(name)

    @pytest.mark.parametrize("name", ["PATH", "TMPDIR", "TF_CONFIG", "AWS_SECRET_ACCESS_KEY", "MY_OWN"])
    def test_what_is_not(self, name):
        assert not fork_client._is_read_at_start(name)

    def test_where_the_limits_are_others(self, start, owner):
        start("end", "0")
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
        try:
            assert told(start, "limits")["limits"] == [before[0] - 1, before[1]]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert len(servers(owner.pid)) == 2

    def test_where_a_package_would_be_found_elsewhere(self, start, tmp_path):
        (tmp_path / "psutil").mkdir()
        (tmp_path / "psutil" / "__init__.py").write_text((Path(psutil.__file__)).read_text())
        assert is_forked(start("end", "0"))
        path = os.pathsep.join([str(tmp_path), *sys.path[1:]])
        process = start("end", "0", environment={"PYTHONPATH": path})
        assert not is_forked(process)
        process.wait(DEADLINE)

    def test_where_a_directory_of_the_search_path_has_nothing_of_ours(self, start, tmp_path):
        (tmp_path / "of_the_user.py").touch()
        path = os.pathsep.join([str(tmp_path), *child_environment("", 1, {})["PYTHONPATH"].split(os.pathsep)])
        assert told(start, "path", environment={"PYTHONPATH": path})["path"][0] == str(tmp_path)
        assert is_forked(start("end", "0", environment={"PYTHONPATH": path}))

    def test_where_the_directory_is_open_to_others(self, start, owner):
        start("end", "0").wait(DEADLINE)
        (directory,) = directories(owner.pid)
        directory.chmod(0o755)
        process = start("end", "0")
        assert not is_forked(process)
        directory.chmod(0o700)
        process.wait(DEADLINE)

    def test_where_it_is_a_link_of_somebody(self, start, owner, tmp_path):
        start("end", "0").wait(DEADLINE)
        (directory,) = directories(owner.pid)
        directory.rename(tmp_path / "moved")
        directory.symlink_to(tmp_path / "moved")
        process = start("end", "0")
        assert not is_forked(process)
        process.wait(DEADLINE)
        directory.unlink()
        (tmp_path / "moved").rename(directory)

    def test_where_the_server_ends_on_a_request_it_does_not_know(self, start, owner):
        start("end", "0").wait(DEADLINE)
        (directory,) = directories(owner.pid)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(directory / "socket"))
            request = Request("forked", [], {}, "/", (owner.pid, 0), "")  # without a search path
            send_frame(stranger, encode(request), [0, 1])
            assert stranger.recv(1) == b""
        assert is_forked(start("end", "0"))

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


@pytest.mark.slow
class TestTensorFlow:
    KERAS = ((USES_KERAS, "1"),)

    def test_is_there_and_what_one_changes_is_not_seen_by_the_next(self, start, monkeypatch):
        monkeypatch.setattr(fork_client, "STILL_SECONDS", 1.0)  # its import takes longer, and is waited for
        assert told(start, "tensorflow", environment=self.KERAS)["tensorflow"]
        for _ in range(2):
            process = start("compute", environment=self.KERAS)
            assert is_forked(process)
            assert process.wait(DEADLINE) == 0
            assert process.output.read_text() == "10\n"
        first, second = (run(start, "change_tensorflow", environment=self.KERAS) for _ in range(2))
        assert first == second == "True float32 1\n"


class TestKey:
    """What processes agree in that share a server."""

    @pytest.mark.parametrize(
        "name", ["CUDA_VISIBLE_DEVICES", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE", "TPU_ML_PLATFORM", "MINE"]
    )
    def test_is_not_what_spark_and_tensorflow_set_for_themselves(self, name):
        known = {"HOME": "/nowhere"}
        assert fork_client.read_at_start({**known, name: "1"}) == fork_client.read_at_start(known)

    def test_is_the_same_where_the_driver_has_imported_scikit_learn(self):
        """As TensorFlow does where it is installed; it sets variables of OpenMP."""
        program = "import json, os; before = {*os.environ}; import sklearn; "
        program += "print(json.dumps({name: os.environ[name] for name in {*os.environ} - before}))"
        unset = {name: value for name, value in os.environ.items() if not name.startswith("KMP_")}
        command = [sys.executable, "-c", program]
        told = json.loads(subprocess.run(command, env=unset, capture_output=True, text=True, check=True).stdout)
        known = {"HOME": "/nowhere"}
        assert "KMP_INIT_AT_FORK" in told
        assert fork_client.read_at_start({**known, **told}) == fork_client.read_at_start(known)
        assert fork_client.read_at_start({**known, "KMP_INIT_AT_FORK": "TRUE"}) != fork_client.read_at_start(known)

    def test_is_the_same_before_and_after_keras_has_written_its_defaults(self, tmp_path):
        known = {"KERAS_HOME": str(tmp_path)}
        before = fork_client.read_at_start(known)
        defaults = {"floatx": "float32", "epsilon": 1e-07, "backend": "tensorflow"}
        (tmp_path / "keras.json").write_text(json.dumps({**defaults, "image_data_format": "channels_last"}))
        assert fork_client.read_at_start(known) == before
        assert fork_client.read_at_start({**known, "KERAS_BACKEND": "tensorflow"}) == before
        (tmp_path / "keras.json").write_text(json.dumps({**defaults, "floatx": "float64"}))
        assert fork_client.read_at_start(known) != before
