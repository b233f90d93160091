"""Programs in another process than the tests': a fork that has TensorFlow, or with few packages or little memory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tfos_ml.agent.child_process import child_environment
from tfos_ml.agent.fork_client import ForkServerRef, start_process
from tfos_ml.inference.tensorflow_import import USES_KERAS
from tfos_ml.worker.fork_server import NO_MARKER

WAIT_SECONDS = 120.0
IDLE_SECONDS = 300.0


def run_elsewhere(program: str, *arguments: str) -> None:
    """Run the text of a program, whose ``sys.argv[1:]`` are `arguments`; it must end with exit code 0."""
    environment = {**child_environment(NO_MARKER, 1, {}), USES_KERAS: "1"}  # as of a node: one server for both
    fork_server = ForkServerRef(os.getpid(), IDLE_SECONDS)
    with tempfile.TemporaryFile() as output, open(os.devnull, "rb") as nothing:
        process = start_process(__name__, [program, *arguments], environment, nothing, output, fork_server)
        try:
            code = process.wait(WAIT_SECONDS)
        finally:
            process.kill()
        output.seek(0)
        assert code == 0, output.read().decode()[-3000:]


def main(arguments: list[str]) -> None:
    """Run the program; in the fork, or in a fresh process."""
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


@contextlib.contextmanager
def limited(megabytes):
    """A real control group with a memory limit, and one without in it: the directory of the latter."""
    for root, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        outer = Path("/sys/fs/cgroup") / root / f"tfos_ml-test-{os.getpid()}"
        try:
            outer.mkdir()
        except OSError:
            continue
        inner = outer / "inner"
        try:
            (outer / limit).write_text(str(megabytes << 20))
            inner.mkdir()
            yield inner
            return
        except FileNotFoundError:  # no group that accounts memory
            continue
        finally:
            for directory in (inner, outer):
                if directory.is_dir():
                    directory.rmdir()
    pytest.skip("no control group with a memory limit can be made here")


def run_in(group, text, *arguments):
    """Run a program in a control group, from before its first import of ours."""
    enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
    command = [sys.executable, "-c", enter + text, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


if __name__ == "__main__":  # where no fork server has these packages
    main(sys.argv[1:])
