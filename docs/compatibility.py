"""Writes compatibility.rst from the results of ``make test-matrix``: ``python docs/compatibility.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "matrix"
PAGE = HERE / "reference" / "compatibility.rst"
ORDER = ("spark-3.5", "spark-4.0", "debian-12", "newest", "connect", "connect-client")
SHOWN = {
    "python": "Python",
    "pyspark": "PySpark",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "pandas": "pandas",
    "numpy": "NumPy",
    "pyarrow": "PyArrow",
    "mlflow": "MLflow",
}
ALIASES = {"tensorflow": "tensorflow-cpu", "pyspark": "pyspark-client"}
BEGINNING = """\
Compatibility
=============

.. Made by docs/compatibility.py from the results of make test-matrix, in docs/matrix; not to be edited.

Each column is an environment of its own, into which the wheel was installed, and the tests that cross every layer
were run there (``make test-matrix``; `tests/README.rst <../../tests/README.rst>`_ says how). What ``setup.cfg`` allows
lies between the lowest and the highest of these versions. How a Spark differs is found out by what it has, not by its
number, as platforms number their own Sparks: `tfos_ml/common/spark_api.py <../../tfos_ml/common/spark_api.py>`_.

"""
REASONS = "Why tests were left out (what they show may work all the same):\n\n"


def results() -> dict[str, dict[str, Any]]:
    """What each corner's run has written, in the order of the columns."""
    return {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in ORDER if _has_run(name)}


def _has_run(name: str) -> bool:
    return (RESULTS / f"{name}.json").exists()


def page() -> str:
    """The whole page."""
    corners = results()
    reasons: list[str] = []
    versions = [
        [title, *(_version(corner["versions"], package) for corner in corners.values())]
        for package, title in SHOWN.items()
    ]
    features = sorted({name for corner in corners.values() for name in corner["features"]})
    outcomes = [
        [name, *(_outcome(corner["features"].get(name), reasons) for corner in corners.values())] for name in features
    ]
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    text = BEGINNING + _table("Versions", ["", *corners], versions) + _table("Features", ["", *corners], outcomes)
    return text + (REASONS + "\n".join(notes) + "\n" if notes else "")


def _version(versions: dict[str, str], package: str) -> str:
    return versions.get(package) or versions.get(ALIASES.get(package, ""), "none")


def _outcome(told: dict[str, Any] | None, reasons: list[str]) -> str:
    if told is None:
        return "not run"
    if told["failed"]:
        return "**fails**"
    numbers = []
    for reason in dict.fromkeys(told["skipped"]):
        if reason not in reasons:
            reasons.append(reason)
        numbers.append(f"({reasons.index(reason) + 1})")
    return " ".join([*(["yes"] if told["passed"] else ["left out"]), *numbers])


def _table(title: str, header: list[str], rows: list[list[str]]) -> str:
    lines = [title, "-" * len(title), "", ".. list-table::", "   :header-rows: 1", ""]
    for row in [header, *rows]:
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}".rstrip() for i, cell in enumerate(row)]
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    PAGE.write_text(page())
