"""What this program runs on: Python, packages in their versions, and the Java that Spark would take."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.version import Version

from tfos_ml.common.extras import EXTRAS
from tfos_ml.doctor.finding import Finding, failed, ok, warning

JAVA_SECONDS = 10.0
OLDEST_PYTHON = (3, 10)
JAVA_OF_SPARK_3, JAVA_OF_SPARK_4 = 8, 17
WANTED = ("spark", "tensorflow")  # extras that are looked at
SHOWN = ("tfos_ml", "pyspark", "tensorflow", "keras", "pyarrow")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')


def check_python() -> list[Finding]:
    """The version of this Python."""
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        return [failed("Python", found, f"Use Python {wanted} or newer, here and on the executors.")]
    return [ok("Python", found)]


def version_of(package: str) -> str | None:
    """The version of a package, under whatever name it was installed (tensorflow-cpu, say); None if it was not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        if importlib.util.find_spec(package) is None:
            return None
    for name in importlib.metadata.packages_distributions().get(package, ()):
        return importlib.metadata.version(name)
    return str(getattr(importlib.import_module(package), "__version__", "0")) if package == "pyspark" else None


def check_packages(tensorflow_runs_here: bool) -> list[Finding]:
    """Whether packages are there, in versions that this one allows.

    `tensorflow_runs_here` says whether nodes run in this Python, too, as in local mode.
    """
    problems = []
    for requirement in _requirements():
        version = version_of(requirement.name)
        extra = EXTRAS.get(requirement.name)
        line = f"'{requirement.name}{requirement.specifier}'"  # with a marker pip would leave it out
        if version is None and importlib.util.find_spec(_module(requirement.name)) is None:
            said = f"{requirement.name} is not installed here"
            if extra == "tensorflow" and not tensorflow_runs_here:
                advice = f"KerasEstimator needs it on the driver, too: pip install {line}"
                problems.append(warning("Packages", said, advice))
            else:
                problems.append(failed("Packages", said, f"pip install {line}, or 'tfos_ml[all]'"))
        elif version is not None and not requirement.specifier.contains(Version(version), prereleases=True):
            said = f"{requirement.name} {version} is installed here, expected {requirement.specifier}"
            problems.append(failed("Packages", said, f"pip install {line}, here and on the executors"))
    shown = [f"{name} {version}" for name in SHOWN if (version := version_of(name)) is not None]
    return problems or [ok("Packages", ", ".join(shown))]


def _requirements() -> Iterator[Requirement]:
    """What this package needs, as it was installed; only what there must be if it was not."""
    try:
        listed = importlib.metadata.requires("tfos_ml") or []
    except importlib.metadata.PackageNotFoundError:  # it is found on the path
        listed = [*EXTRAS, "pyarrow", "cloudpickle", "psutil"]
        listed.remove("mlflow")
    for requirement in map(Requirement, listed):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in WANTED):
            yield requirement


def _module(distribution: str) -> str:
    return distribution.replace("-", "_")


def check_java() -> list[Finding]:
    """The Java that Spark's scripts would start: that of JAVA_HOME, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    origin = f"JAVA_HOME={home}" if home else "PATH"
    install = "Install a JRE (Debian: apt-get install openjdk-17-jre-headless) and have JAVA_HOME name its directory."
    if program is None or not os.access(program, os.X_OK):
        wrong = f"{origin} has no bin/java" if home else "there is no java on PATH, and JAVA_HOME is not set"
        return [failed("Java", wrong, f"Unset JAVA_HOME, or: {install}" if home else install)]
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return [failed("Java", f"{program} ({origin}) cannot be run: {error}", install)]
    version = _VERSION.search(done.stderr + done.stdout)
    if done.returncode or version is None:
        return [failed("Java", f"{program} ({origin}) -version says: {done.stderr or done.stdout}", install)]
    spark = version_of("pyspark") or "4"
    oldest = JAVA_OF_SPARK_3 if spark.startswith("3.") else JAVA_OF_SPARK_4
    said = f"{version[0].partition(' ')[2].strip(chr(34))} ({program}, of {origin})"
    if int(version[1]) < oldest:
        return [failed("Java", f"{said}; PySpark {spark} needs {oldest} or newer", install)]
    return [ok("Java", said)]
