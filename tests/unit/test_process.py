import contextlib
import os
import signal
import subprocess
import sys

import pytest
from conftest import ends, lives

from tfos_ml.agent.child_process import child_environment, describe_exit
from tfos_ml.agent.output import LimitedLines, OutputRelay
from tfos_ml.agent.reaper import kill_tree
from tfos_ml.common.pids import ProcessHandle
from tfos_ml.worker.fork_server import MARKER

DEADLINE = 60.0


@pytest.fixture
def start():
    """Starts processes; ends those of a test that are left."""
    started = []

    def start(command, marker=None, **options):
        environment = {**os.environ, MARKER: marker} if marker else None
        started.append(
            subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
            )
        )
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # nothing if it leads no group
        process.kill()
        process.wait(DEADLINE)
        process.stdin.close()
        process.stdout.close()


def test_a_line_of_any_length_is_cut_and_a_full_log_disk_does_not_reach_the_process(monkeypatch):
    program = "import sys; print('a' * 9_000_000); print('short'); sys.stdout.write('last')"
    lines = []
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        relay = OutputRelay(process.stdout, "worker:0", LimitedLines(lines.append, 100))
        tail = relay.tail(DEADLINE)
        assert process.wait(DEADLINE) == 0
        with contextlib.suppress(OSError):
            full.close()
    assert tail == f"{'a' * 2000} (8,998,000 characters left out)\nshort\nlast\n"
    assert [len(line) for line in lines] == [2032, 5, 4]


class TestKillTree:
    def test_finds_a_grandchild_in_a_session_of_its_own_by_the_marker(self, start):
        child = start(["sh", "-c", "setsid sleep 600 & echo $!; wait"], marker="m-1", start_new_session=True)
        grandchild = int(child.stdout.readline())
        kill_tree(ProcessHandle.open(child.pid), "m-1")
        assert ends(child.pid)
        assert ends(grandchild)

    def test_finds_an_orphan_by_the_marker_alone(self, start):
        parent = start(["sh", "-c", "setsid sleep 600 >/dev/null & echo $!"], marker="m-2")
        orphan = int(parent.stdout.readline())
        parent.wait(DEADLINE)
        assert lives(orphan)
        kill_tree(None, "m-2")
        assert ends(orphan)

    def test_finds_a_process_that_executes_another_program_at_that_moment(self, start, tmp_path):
        script = tmp_path / "again.sh"
        script.write_text('#!/bin/sh\nexec "$0"\n')
        script.chmod(0o755)
        for number in range(30):  # each look at it meets execve(2) about one time in two
            again = start([script], marker=f"m-5-{number}")
            kill_tree(None, f"m-5-{number}")
            assert ends(again.pid)

    def test_spares_processes_of_other_nodes(self, start):
        other = start(["sleep", "600"], marker="m-40", start_new_session=True)
        kill_tree(None, "m-4")
        assert lives(other.pid)


@pytest.mark.parametrize(
    ("returncode", "code", "name", "sentence"),
    [
        (3, 3, None, "exited with code 3"),
        (-11, None, "SIGSEGV", "was ended by SIGSEGV"),
        (-9, None, "SIGKILL", "was ended by SIGKILL"),
        (137, 137, "SIGKILL", "was ended by SIGKILL"),
    ],
)
def test_exit_is_described_and_one_that_may_be_out_of_memory_names_the_setting(returncode, code, name, sentence):
    found = describe_exit(returncode)
    assert found[:2] == (code, name)
    assert found[2].startswith(sentence)
    assert ("spark.executor.memoryOverhead" in found[2]) is (name == "SIGKILL")


class TestChildEnvironment:
    def test_leaves_out_what_spark_keeps_to_itself(self, monkeypatch):
        for name in ("PYTHON_WORKER_FACTORY_SECRET", "_PYSPARK_DRIVER_CONN_INFO_PATH", "PYSPARK_GATEWAY_SECRET"):
            monkeypatch.setenv(name, "s3cret")
        for name in ("_SPARK_AUTH_SECRET", "SPARK_CONNECT_AUTHENTICATE_TOKEN", "TF_CONFIG"):
            monkeypatch.setenv(name, "s3cret")
        assert "s3cret" not in child_environment("m", 1, {}).values()

    def test_sizes_thread_pools_by_the_cores_of_the_task(self, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        environment = child_environment("m", 4, {})
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            assert environment[name] == "4"

    def test_child_imports_what_this_process_can(self, tmp_path, monkeypatch, start):
        (tmp_path / "only_here.py").write_text("print('found')")
        monkeypatch.syspath_prepend(tmp_path)
        child = start([sys.executable, "-m", "only_here"], marker="m-6")
        assert child.wait(DEADLINE) != 0
        command = [sys.executable, "-m", "only_here"]
        output = subprocess.run(command, env=child_environment("m", 1, {}), capture_output=True, text=True)
        assert output.stdout == "found\n"
