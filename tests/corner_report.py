"""Pytest plugin: how each feature (``pytest.mark.corner``) fared on the versions that are installed, as JSON.

``pytest -p corner_report -m corner`` writes to the file that ``TFOS_ML_CORNER`` names; ``docs/compatibility.py`` makes
a table of such files.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

TENSORFLOW = ("tensorflow", "tensorflow-cpu", "keras")
PACKAGES = ("pyspark", "pyspark-client", *TENSORFLOW, "pandas", "numpy", "pyarrow", "mlflow", "protobuf")


def versions() -> dict[str, str]:
    """Of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class Report:
    """Outcomes by feature, of the process that leads the tests."""

    def __init__(self, path: Path):
        self._path = path
        self._features: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        feature = dict(report.user_properties).get("corner")
        if feature is None or (report.when != "call" and report.passed):
            return
        told = self._features.setdefault(str(feature), {"passed": 0, "failed": 0, "skipped": []})
        if not report.skipped:
            told[report.outcome] += 1
        else:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            told["skipped"].append(reason.removeprefix("Skipped: "))

    def pytest_sessionfinish(self) -> None:
        features = {name: self._features[name] for name in sorted(self._features)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"versions": versions(), "features": features}, indent=1) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(Path(os.environ["TFOS_ML_CORNER"])))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("corner")
        if marker is not None:
            item.user_properties.append(("corner", marker.args[0]))
