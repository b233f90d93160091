"""The requirements of a process that serves a model: packages, and the code of tfos_ml if it is not installed."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING

import mlflow

import tfos_ml
from tfos_ml.common.optional_packages import distribution_of

if TYPE_CHECKING:
    from importlib.abc import Traversable

PACKAGE = "tfos_ml"
_SERVING = ("tensorflow", "msgspec", "numpy", "pandas", "pyarrow", "psutil")


def pip_requirements(*more: str) -> list[str]:
    """Requirements for serving, and `more` packages, in the versions that are installed here."""
    distributions = [distribution_of(package) for package in (PACKAGE, *_SERVING, *more)]
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in distributions if name is not None]
    return [f"mlflow=={mlflow.__version__}", *versions]


def code_paths(directory: Path) -> list[str]:
    """The code to log with a model: a copy of tfos_ml in `directory`; empty if tfos_ml is installed.

    The code is copied from where the package was imported: PYTHONPATH, or an archive of ``--py-files``.
    """
    if distribution_of(PACKAGE) is not None:
        return []
    target = directory / PACKAGE
    _copy(importlib.resources.files(tfos_ml), target)
    return [str(target)]


def _copy(source: Traversable, target: Path) -> None:
    if source.is_file():
        target.write_bytes(source.read_bytes())
        return
    target.mkdir()
    for entry in source.iterdir():
        if entry.name != "__pycache__":
            _copy(entry, target / entry.name)
