"""Programs in another process than the tests': a fork of one that has imported TensorFlow, or without some packages."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from packaging.requirements import Requirement

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


def interpreter_without(directory: Path, *absent: str) -> str:
    """A Python with all packages of this one but for tfos_ml, and for those whose names begin so."""
    entries = os.listdir(sysconfig.get_path("purelib"))
    return _linked(directory, {entry for entry in entries if not entry.lower().startswith(("tfos_ml", *absent))})


def interpreter_with(directory: Path, *requirements: str) -> str:
    """A Python with what these lines, and what they need in turn, have pip install, as it is installed here."""
    left, found = [Requirement(line) for line in requirements], {}
    while left:
        wanted = left.pop()
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            installed = importlib.metadata.distribution(wanted.name)
            assert wanted.specifier.contains(installed.version, prereleases=True), (wanted, installed.version)
            if wanted.name not in found:
                left += map(Requirement, installed.requires or [])
            found[wanted.name] = {path.parts[0] for path in installed.files or []} - {".."}
    return _linked(directory, set().union(*found.values()))


def _linked(directory: Path, entries: set[str]) -> str:
    """An interpreter of its own, with links to these entries of this one's site-packages."""
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    for entry in entries:
        if not entry.startswith(("__editable__", "__pycache__", "_virtualenv")):
            packages.joinpath(entry).symlink_to(Path(sysconfig.get_path("purelib"), entry))
    return str(directory / "bin/python")
