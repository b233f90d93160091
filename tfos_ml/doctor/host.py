"""Checks of one host, the driver's or an executor's: Python, packages, Java, memory and disks."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from packaging.requirements import Requirement
from packaging.version import Version

from tfos_ml.common.cgroup import memory_headroom
from tfos_ml.common.optional_packages import EXTRAS, version_of
from tfos_ml.common.timeouts import JAVA_SECONDS
from tfos_ml.data.spool import DISK_RESERVE, MEMORY_RESERVE, SHARED_MEMORY, disk_root

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"
OLDEST_PYTHON = (3, 10)
NEWEST_PYTHON = (3, 13)  # for which TensorFlow has a final release
LEAST_MEMORY = 1 << 30  # TensorFlow and Keras hold 0.5 GB once imported
NODE_PACKAGES = ("tfos_ml", "tensorflow", "keras")  # nodes that differ in these are refused, or train apart
_WANTED_EXTRAS = ("spark", "tensorflow")
_SHOWN = (*NODE_PACKAGES, "pyspark", "pyarrow")
_INSTALL_JAVA = "Install a JRE (Debian: apt-get install openjdk-17-jre-headless) and have JAVA_HOME name its directory."
_SAME_PYTHON = (
    "Install what the driver has on every host, and have spark.pyspark.python, or PYSPARK_PYTHON, name the Python that "
    "has it."
)


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    check: str  # what was looked at
    status: str  # OK, WARNING (it works, with a drawback), FAILED or SKIPPED
    message: str  # what was found
    advice: str = ""  # what to do; empty where there is nothing to do


def check_python() -> Finding:
    """Check the version of this Python."""
    version = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return Finding("Python", FAILED, version, f"Use Python {oldest} or newer, here and on the executors.")
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        advice = f"Use Python {newest}, here and on the executors: TensorFlow has no final release for newer ones."
        return Finding("Python", FAILED, version, advice)
    return Finding("Python", OK, version)


def check_packages(tensorflow_runs_here: bool) -> list[Finding]:
    """Check that packages are installed, in versions that tfos_ml allows.

    `tensorflow_runs_here` says whether nodes run in this Python, too, as in local mode.
    """
    problems = []
    for requirement in _requirements():
        version = version_of(requirement.name)
        line = f"pip install '{requirement.name}{requirement.specifier}'"
        if version is None:
            message, only_driver = f"{requirement.name} is not installed here", not tensorflow_runs_here
            if EXTRAS.get(requirement.name) == "tensorflow" and only_driver:
                advice = f"KerasEstimator needs it on the driver, too: {line}"
                problems.append(Finding("Packages", WARNING, message, advice))
            else:
                problems.append(Finding("Packages", FAILED, message, f"{line}, or 'tfos_ml[all]'"))
        elif not requirement.specifier.contains(Version(version), prereleases=True):
            message = f"{requirement.name} {version} is installed here, expected {requirement.specifier}"
            problems.append(Finding("Packages", FAILED, message, f"{line}, here and on the executors"))
    versions = [f"{name} {version}" for name in _SHOWN if (version := version_of(name)) is not None]
    return problems or [Finding("Packages", OK, ", ".join(versions))]


def _requirements() -> Iterator[Requirement]:
    """What the installed tfos_ml requires; names only where it is not installed, but found on the path."""
    try:
        lines = importlib.metadata.requires("tfos_ml") or []
    except importlib.metadata.PackageNotFoundError:
        lines = ["pyspark", "tensorflow", "keras", "pyarrow", "cloudpickle", "msgspec", "psutil"]
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in _WANTED_EXTRAS):
            yield requirement


def node_versions() -> dict[str, str]:
    """Versions that all nodes and the driver have in common."""
    versions = {name: version_of(name) for name in NODE_PACKAGES}
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, **{name: version for name, version in versions.items() if version is not None}}


def check_versions(driver: dict[str, str]) -> Finding:
    """Compare this executor's versions with the driver's, as :func:`node_versions` gives them."""
    check, here, host = "Executors' Python", node_versions(), socket.gethostname()
    for name, version in driver.items():
        if here.get(name) != version:
            message = f"{host} has {name} {here.get(name, 'not installed')}, the driver {version}"
            return Finding(check, FAILED, message, _SAME_PYTHON)
    return Finding(check, OK, ", ".join(f"{name} {version}" for name, version in here.items()))


def check_java(spark_version: str) -> Finding:
    """Check the Java that Spark's scripts start: that of JAVA_HOME, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if program is None or not os.access(program, os.X_OK):
        if home:
            return Finding("Java", FAILED, f"JAVA_HOME={home} has no bin/java", f"Unset JAVA_HOME, or: {_INSTALL_JAVA}")
        return Finding("Java", FAILED, "there is no java on PATH, and JAVA_HOME is not set", _INSTALL_JAVA)
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("Java", FAILED, f"{program} cannot be run: {error}", _INSTALL_JAVA)
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', done.stderr + done.stdout)
    if done.returncode or version is None:
        return Finding("Java", FAILED, f"{program} -version prints: {done.stderr or done.stdout}", _INSTALL_JAVA)
    oldest = 8 if spark_version.startswith("3.") else 17
    message = f"{version[1]} ({program})"
    if int(version[1]) < oldest:
        return Finding("Java", FAILED, f"{message}; PySpark {spark_version} needs {oldest} or newer", _INSTALL_JAVA)
    return Finding("Java", OK, message)


def check_capacity(where: str) -> list[Finding]:
    """Check memory, shared memory and disks of this host; `where` is part of the checks' names."""
    more_shared = "Rows go to spark.local.dir, which is slower. In a container give it more (docker run --shm-size 4g)."
    local = "Have spark.local.dir (SPARK_LOCAL_DIRS) name a directory on a disk with free space that you may write to."
    temporary = "Have TMPDIR name a directory on a disk with free space that you may write to."
    return [
        _memory(where),
        _free(f"Shared memory, {where}", SHARED_MEMORY, 2 * MEMORY_RESERVE, WARNING, more_shared),
        _free(f"Local directory, {where}", disk_root(), 2 * DISK_RESERVE, FAILED, local),
        _free(f"Temporary directory, {where}", Path(tempfile.gettempdir()), 2 * DISK_RESERVE, FAILED, temporary),
    ]


def _memory(where: str) -> Finding:
    free, headroom = psutil.virtual_memory().available, memory_headroom()
    limited = headroom is not None and headroom < free
    free = headroom if limited and headroom is not None else free
    message = f"{free >> 20} MiB left{' by the container' * limited} ({socket.gethostname()})"
    advice = "A node takes 0.5 GB and its model. Raise spark.executor.memoryOverhead or the container's limit."
    status = FAILED if free < LEAST_MEMORY else WARNING if free < 2 * LEAST_MEMORY else OK
    return Finding(f"Memory, {where}", status, message, advice if status != OK else "")


def _free(check: str, directory: Path, least: int, bad: str, advice: str) -> Finding:
    """Write a file into a directory, and compare the bytes that are free with the least that there should be."""
    host = socket.gethostname()
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"tfos_ml")
            file.flush()
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return Finding(check, bad, f"{directory} cannot be written to: {error.strerror or error} ({host})", advice)
    message = f"{directory} has {free >> 20} MiB free ({host})"
    if free < least:
        return Finding(check, bad, f"{message}, and should have {least >> 20} MiB", advice)
    return Finding(check, OK, message)
