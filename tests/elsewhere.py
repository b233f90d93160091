"""Programs that use TensorFlow, in another process than the tests': a fork of one that has imported it already."""

from __future__ import annotations

import os
import sys
import tempfile

from tfos_ml.agent.forkserver import Forking, start_process
from tfos_ml.agent.process import child_environment
from tfos_ml.inference.tensorflow_import import USES_KERAS
from tfos_ml.worker.forkserver import NO_MARKER

WAIT_SECONDS = 120.0
IDLE_SECONDS = 300.0


def run_elsewhere(program: str, *arguments: str) -> None:
    """Run the text of a program, whose ``sys.argv[1:]`` are `arguments`; it must end with exit code 0."""
    environment = {**child_environment(NO_MARKER, 2, {}), USES_KERAS: "1"}
    forking = Forking(os.getpid(), IDLE_SECONDS)
    with tempfile.TemporaryFile() as output, open(os.devnull, "rb") as nothing:
        process = start_process(__name__, [program, *arguments], environment, nothing, output, forking)
        try:
            code = process.wait(WAIT_SECONDS)
        finally:
            process.kill()
        output.seek(0)
        assert code == 0, output.read().decode()[-3000:]


def main(arguments: list[str]) -> None:
    """Run the program; in the fork."""
    _, program, *rest = arguments
    sys.argv = ["-c", *rest]
    exec(compile(program, "elsewhere", "exec"), {"__name__": "__main__"})
