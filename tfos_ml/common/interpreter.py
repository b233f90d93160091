"""Fresh Python processes: their command line, and where they find modules.

``python -m`` searches the working directory first, where others may have put a ``json.py``. Ours
do not, until the process comes to run the user's code, which may lie there.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfos_ml.common.sessions import is_connect, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARKS_PYTHON = "python3"  # what Spark runs if PYSPARK_PYTHON is not set
_SPARK_JAR = re.compile(r"spark-core_.*\.jar")
# What -P does, for Python 3.10. Nothing has been imported from the working directory before it runs.
_SAFE_RUN = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def use_own_python(spark: SparkSession) -> None:
    """Have the Python workers of a local master run this Python, unless the user has named one.

    Spark runs the first ``python3`` on the search path. That is the environment's only while the environment is
    activated; IDEs and notebook kernels run its Python without that.
    """
    if is_connect(spark) or not is_local(spark) or "PYSPARK_PYTHON" in os.environ or not sys.executable:
        return
    if spark.sparkContext.pythonExec == _SPARKS_PYTHON:
        spark.sparkContext.pythonExec = sys.executable


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in a fresh process, without the working directory on its path."""
    start = ["-P", "-m"] if hasattr(sys.flags, "safe_path") else ["-c", _SAFE_RUN]
    return [sys.executable, *start, module, *arguments]


def search_path() -> list[str]:
    """The module search path of this process, without the working directory unless the user put it there.

    It does without Spark's archives where the same packages are installed: Python keeps nothing compiled of an
    archive, so that each process would compile pyspark anew.
    """
    here = _working_directory()
    path = [p for p in sys.path if p and (os.path.realpath(p) != here or _is_on_purpose(p))]
    installed = [name for name in ("pyspark", "py4j") if any(os.path.isdir(os.path.join(p, name)) for p in path)]
    return [p for p in path if not _is_archive_of(p, installed)]


def _is_archive_of(path: str, packages: Sequence[str]) -> bool:
    """Whether a path is what Spark adds for packages that are installed; its own jar holds no Python in any case."""
    name = os.path.basename(path)
    return (name.endswith(".zip") and name.startswith(tuple(packages))) or bool(_SPARK_JAR.fullmatch(name))


def _working_directory() -> str | None:
    try:
        return os.path.realpath(os.getcwd())
    except FileNotFoundError:  # it has been deleted
        return None


def _is_on_purpose(path: str) -> bool:
    """Whether PYTHONPATH names a directory, or this package is run from it."""
    named = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    home = str(Path(__file__).parents[1])
    return os.path.realpath(path) in map(os.path.realpath, [*named, home])


def add_working_directory() -> None:
    """Search the working directory first from now on, as ``python -m`` does, for the user's modules."""
    here = _working_directory()
    if here is None or os.environ.get("PYTHONSAFEPATH"):
        return
    sys.path.insert(0, here)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
