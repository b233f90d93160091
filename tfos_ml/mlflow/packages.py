"""What a process that serves a model needs: packages by version, and the code of tfos_ml if it is not installed."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING

import mlflow

import tfos_ml

if TYPE_CHECKING:
    from importlib.abc import Traversable

PACKAGE = "tfos_ml"
_SERVING = ("tensorflow", "msgspec", "numpy", "pandas", "pyarrow", "psutil")


def version_of(package: str) -> str | None:
    """Version of a package, under whatever name it was installed (tensorflow-cpu, say); None if it was not."""
    if package == PACKAGE:
        return tfos_ml.__version__
    distribution = _distribution_of(package)
    return None if distribution is None else importlib.metadata.version(distribution)


def pip_requirements(*more: str) -> list[str]:
    """What a process that serves a model installs, and `more` packages, in the versions of this one."""
    distributions = [_distribution_of(package) for package in (PACKAGE, *_SERVING, *more)]
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in distributions if name is not None]
    return [f"mlflow=={mlflow.__version__}", *versions]


def _distribution_of(package: str) -> str | None:
    """The name under which a package was installed, None if it was not."""
    try:
        importlib.metadata.version(package)
        return package
    except importlib.metadata.PackageNotFoundError:
        return next(iter(importlib.metadata.packages_distributions().get(package, ())), None)


def code_paths(directory: Path) -> list[str]:
    """The code that a logged model needs: none if this package was installed, else a copy of it in `directory`.

    The copy is made from wherever the package was imported: PYTHONPATH, or an archive of ``--py-files``.
    """
    if _distribution_of(PACKAGE) is not None:
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
