import subprocess
import sys

import pytest

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
    [{"setup": "", **HANDLE}, OLD_HANDLE, {"setup": "", **OF_A_FORK_SERVER}],
    ids=["handle", "handle before Linux 5.3", "of a fork server"],
)
def test_process_that_was_given_the_pid_of_another_lives_on(parts):
    assert in_own_pids(REUSED.format(**parts)) == "lives\n"
