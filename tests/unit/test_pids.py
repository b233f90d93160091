import errno
import os
import signal
import subprocess
import sys

import psutil
import pytest
from conftest import wait_until

from tfos_ml.common.pids import ProcessHandle, start_mark, start_ticks

DEADLINE = 60.0
NO_PID = 4194303


@pytest.fixture
def group():
    """A process that leads a group of two, in a session of their own, and the other one."""
    command = ["sh", "-c", "sleep 600 & echo $!; read line"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as leader:
        member = psutil.Process(int(leader.stdout.readline()))
        yield leader, member
        if member.is_running():
            member.kill()
        leader.kill()


@pytest.fixture(params=["now", "before 5.3"])
def kernel(request, monkeypatch):
    """A kernel without descriptors of processes, as before Linux 5.3, too."""

    def no_open(pid, flags=0):
        raise OSError(errno.ENOSYS, "Function not implemented")

    if request.param != "now":
        monkeypatch.setattr(os, "pidfd_open", no_open)


def ended(process):
    return wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, DEADLINE)


def test_start_is_that_of_the_process():
    mine = start_ticks(os.getpid())
    assert mine == start_ticks(os.getpid())
    boot = mine / os.sysconf("SC_CLK_TCK")
    assert boot == pytest.approx(psutil.Process().create_time() - psutil.boot_time(), abs=2)
    with subprocess.Popen(["sleep", "600"]) as child:
        assert start_ticks(child.pid) >= mine
        child.kill()
    assert start_ticks(NO_PID) is None
    assert start_mark(NO_PID) is None


def test_signal_reaches_the_process_alone(kernel, group):
    leader, member = group
    with ProcessHandle.open(leader.pid, start_ticks(leader.pid)) as handle:
        assert not handle.wait(0)
        handle.send_signal(signal.SIGKILL)
        assert handle.wait(DEADLINE)
        assert leader.wait(DEADLINE) == -signal.SIGKILL
        handle.send_signal(signal.SIGKILL)  # again is fine
        assert handle.wait(DEADLINE)
    assert member.is_running()


REUSED = """
import os, signal, subprocess, sys

{setup}

def start(pid):
    "A process of a given pid, that leads a session."
    for _ in range(1000):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(pid - 1))
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    raise SystemExit("no process got the pid")

first = start(30000)
{take}
first.kill()
first.wait()
second = start(30000)
{end}
try:
    print("ended", second.wait(1))
except subprocess.TimeoutExpired:
    print("lives")
second.kill()
second.wait()
"""
OLD_KERNEL = """
import errno
def pidfd_open(*arguments):
    raise OSError(errno.ENOSYS, "Function not implemented")
os.pidfd_open = pidfd_open
"""
HANDLE = {
    "take": "from tfos_ml.common.pids import ProcessHandle; handle = ProcessHandle.open(first.pid)",
    "end": "handle.kill_group(); handle.send_signal(signal.SIGKILL)",
}
# Whom no descriptor can be given knows a start to a clock tick of 10 ms: the second process starts in another one.
OTHER_TICK = "import time; time.sleep(0.02)"
OLD_HANDLE = {**HANDLE, "setup": OLD_KERNEL, "take": f"{HANDLE['take']}; {OTHER_TICK}"}
GUARDIAN = {
    "take": "from tfos_ml.agent import reaper; g = reaper.Reaper('m'); g.guard(pid=first.pid)" + f"; {OTHER_TICK}",
    "end": "g.finish(report=False)",
}

OF_A_FORK_SERVER = {  # which has waited for the first process before the reaper hears of it
    "take": "from tfos_ml.agent import reaper; from tfos_ml.common.pids import start_ticks; g = reaper.Reaper('m')"
    + f"; started = start_ticks(first.pid); {OTHER_TICK}",
    "end": "g.guard(pid=first.pid, started=started); g.finish(report=False)",
}


def in_own_pids(program):
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "Operation not permitted" in done.stderr or "ns_last_pid" in done.stderr:
        pytest.skip(f"pids cannot be chosen here: {done.stderr}")
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "parts",
    [{"setup": "", **HANDLE}, OLD_HANDLE, {"setup": "", **GUARDIAN}, {"setup": "", **OF_A_FORK_SERVER}],
    ids=["handle", "handle of an old kernel", "guardian", "of a fork server"],
)
def test_process_that_was_given_the_pid_of_another_lives_on(parts):
    assert in_own_pids(REUSED.format(**parts)) == "lives\n"
