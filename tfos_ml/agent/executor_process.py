"""The Spark executor to which this Python worker belongs."""

from __future__ import annotations

import contextlib
import os

import psutil

_EXECUTOR = "ExecutorBackend"  # ends the main class of executors: CoarseGrained-, KubernetesExecutorBackend


def executor() -> int:
    """The JVM that this Python worker belongs to, or else the process that has started it."""
    for parent in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            if parent.name() == "java":
                return parent.pid
    return os.getppid()


def executor_cores(pid: int) -> int | None:
    """Cores that Spark has given an executor, as its command line says; None if it is none (in local mode)."""
    with contextlib.suppress(psutil.Error, ValueError):
        command = psutil.Process(pid).cmdline()
        if any(_EXECUTOR in word for word in command):  # other programs may have such an argument, too
            return int(command[command.index("--cores") + 1])
    return None
