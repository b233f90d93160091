"""The TensorFlow process of a node. It leads a session of its own and has a scrubbed environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Mapping

from tfos_ml.agent.fork_client import ForkServerRef, start_process
from tfos_ml.agent.output import LimitedLines, OutputRelay
from tfos_ml.common.interpreter import search_path
from tfos_ml.worker.fork_server import MARKER

_SECRET = ("PYTHON_WORKER_FACTORY_", "_PYSPARK_", "PYSPARK_GATEWAY", "SPARK_AUTH", "_SPARK_", "SPARK_CONNECT")
_OURS_TO_SET = ("OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTHON_UDF_BATCH_SIZE", "TF_CONFIG")


def new_marker() -> str:
    """A new value of :data:`MARKER`, unique to one attempt of a node; all values have the same length."""
    return uuid.uuid4().hex


def child_environment(marker: str, threads: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Environment of a TensorFlow process.

    Its `marker` identifies the node; all descendants inherit it. `threads` are the CPU cores of the node's Spark task:
    they size TensorFlow's and OpenMP's thread pools. `extra` overrides all other variables.
    """
    return {
        **base_environment(),
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(max(2, threads)),
        **extra,
        MARKER: marker,
    }


def base_environment() -> dict[str, str]:
    """The environment that all processes with TensorFlow inherit from this one, without its secrets."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_SECRET) and k not in _OURS_TO_SET}
    kept.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return {**kept, "PYTHONPATH": os.pathsep.join(search_path()), "PYTHONUNBUFFERED": "1"}


class ChildProcess:
    """A running process that calls a module's ``main``; its standard input is the other end of ``socket``.

    `environment` is its whole environment, `label` the prefix of its lines in the log; `others` also gets its lines.
    Its ``pid`` is its session and process group too. ``started`` is set if a fork server has started it, which may have
    waited for it; see :func:`tfos_ml.common.pids.start_ticks`.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str],
        label: str,
        others: LimitedLines | None = None,
        fork_server: ForkServerRef | None = None,
    ):
        self.socket, theirs = socket.socketpair()
        reading, writing = os.pipe()
        with theirs, open(writing, "wb") as output:
            self._process = start_process(module, (), environment, theirs.fileno(), output, fork_server, label)
        self.pid = self._process.pid
        self.started: int | None = getattr(self._process, "started", None)
        self._relay = OutputRelay(os.fdopen(reading, errors="replace"), label, others)

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def log_tail(self) -> str:
        return self._relay.tail(timeout=0.0 if self.returncode is None else 1.0)

    def kill(self) -> None:
        """Kill it; the reaper kills its descendants."""
        self._process.kill()

    def wait(self, timeout: float) -> bool:
        """Whether it ended within `timeout` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def describe_exit(returncode: int) -> tuple[int | None, str | None, str]:
    """Exit code, signal name and a sentence for a return code of ``subprocess``.

    Examples
    --------
    >>> describe_exit(-11)
    (None, 'SIGSEGV', 'was ended by SIGSEGV')
    """
    if returncode == -signal.SIGKILL or returncode == 128 + signal.SIGKILL:
        hint = (
            "was ended by SIGKILL. The kernel does this to a process that is out of memory (exit code 137): "
            "raise spark.executor.memoryOverhead, use a smaller batchSize, or fewer nodes on a host"
        )
        return (None if returncode < 0 else returncode), "SIGKILL", hint
    if returncode < 0:
        known = -returncode in set(signal.Signals)
        name = signal.Signals(-returncode).name if known else f"signal {-returncode}"  # realtime signals have none
        return None, name, f"was ended by {name}"
    return returncode, None, f"exited with code {returncode}"
