"""Packages that tfos_ml does not install itself. If one is missing, the error names the command that installs it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator

from tfos_ml.common.version import __version__
from tfos_ml.errors import MissingPackageError

EXTRAS = {"pyspark": "spark", "tensorflow": "tensorflow", "keras": "tensorflow", "mlflow": "mlflow", "optuna": "optuna"}
ALSO = {
    "spark": " (pyspark-client does as well, where Spark Connect is all you use)",
    "tensorflow": " (tensorflow-cpu does as well)",
}


def distribution_of(package: str) -> str | None:
    """The name of the distribution of a package, tensorflow-cpu say; None if it is not installed."""
    try:
        importlib.metadata.version(package)
        return package
    except importlib.metadata.PackageNotFoundError:
        return next(iter(importlib.metadata.packages_distributions().get(package, ())), None)


def version_of(package: str) -> str | None:
    """The version of a package, installed by whatever distribution; None if it is not there."""
    if package == "tfos_ml":
        return __version__
    distribution = distribution_of(package)
    if distribution is not None:
        return importlib.metadata.version(distribution)
    if package == "pyspark" and importlib.util.find_spec(package) is not None:  # of SPARK_HOME, on PYTHONPATH
        return str(importlib.import_module(package).__version__)
    return None


@contextlib.contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Import what `what`, the beginning of a sentence, needs.

    Raises ``MissingPackageError`` in place of a ``ModuleNotFoundError`` of a package of :data:`EXTRAS`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise _missing(package, what) from error


def check_installed(package: str, what: str) -> None:
    """Raise ``MissingPackageError`` if a package of :data:`EXTRAS` is missing, without importing it."""
    if importlib.util.find_spec(package) is None:
        raise _missing(package, what)


def _missing(package: str, what: str) -> MissingPackageError:
    extra = EXTRAS[package]
    line = f"pip install 'tfos_ml[{extra}]'{ALSO.get(extra, '')}"
    return MissingPackageError(f"{what} needs {package}, which is not installed here. Run: {line}.", name=package)
