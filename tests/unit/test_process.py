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
    """Starts processes that lead groups; ends those of a test that are left."""
    started = []

    def start(command, marker):
        options = {"env": {**os.environ, MARKER: marker}, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, start_new_session=True, **options))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE)
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
    def test_finds_orphans_in_sessions_of_their_own_by_the_marker_and_spares_other_nodes(self, start):
        child = start(["sh", "-c", "setsid sleep 600 & echo $!; wait"], "m-1")
        grandchild = int(child.stdout.readline())
        parent = start(["sh", "-c", "setsid sleep 600 >/dev/null & echo $!"], "m-1")
        orphan = int(parent.stdout.readline())
        parent.wait(DEADLINE)
        other = start(["sleep", "600"], "m-10")
        kill_tree(ProcessHandle.open(child.pid), "m-1")
        assert all(ends(pid) for pid in (child.pid, grandchild, orphan))
        assert lives(other.pid)

    def test_finds_a_process_that_executes_another_program_at_that_moment(self, start, tmp_path):
        script = tmp_path / "again.sh"
        script.write_text('#!/bin/sh\nexec "$0"\n')
        script.chmod(0o755)
        for number in range(10):  # each look at it meets execve(2) about one time in two
            again = start([script], f"m-5-{number}")
            kill_tree(None, f"m-5-{number}")
            assert ends(again.pid)


def test_an_exit_that_may_be_out_of_memory_names_the_setting():
    assert describe_exit(-11) == (None, "SIGSEGV", "was ended by SIGSEGV")
    for returncode, code in ((-9, None), (137, 137)):
        found = describe_exit(returncode)
        assert found[:2] == (code, "SIGKILL")
        assert "spark.executor.memoryOverhead" in found[2]


def test_a_child_has_no_secrets_of_spark_threads_by_cores_and_imports_what_this_process_can(tmp_path, monkeypatch):
    for name in ("PYTHON_WORKER_FACTORY_SECRET", "PYSPARK_GATEWAY_SECRET", "_SPARK_AUTH_SECRET", "TF_CONFIG"):
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "only_here.py").write_text("print('found')")
    monkeypatch.syspath_prepend(tmp_path)
    environment = child_environment("m", 4, {})
    assert "s3cret" not in environment.values()
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        assert environment[name] == "4"
    command = [sys.executable, "-m", "only_here"]
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == "found\n"
