"""Checks that the executors' Python has what nodes need: once for each application, before its first cluster.

Executors without ``tfos_ml`` cannot even unpickle a function of it, and Spark would print a long stack trace. So the
check is sent by value and needs only Python. If the driver must first import TensorFlow to inspect a model, the
executors are checked meanwhile, and begin to import what their nodes will need.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tfos_ml.common.interpreter import use_own_python
from tfos_ml.common.sessions import is_connect, is_local
from tfos_ml.common.spark_api import map_in_arrow
from tfos_ml.common.timeouts import PROBE_SECONDS
from tfos_ml.driver.preflight import registered_slots
from tfos_ml.driver.spark_job import SparkJob
from tfos_ml.errors import ClusterConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

NEEDED = ("tfos_ml", "tensorflow", "pyarrow", "cloudpickle", "msgspec", "psutil")
PROBE_TAG = "tfos_ml-probe-"
_FUTURE = "from __future__ import annotations\n"
_CHECKED_LIMIT = 100
_checked: list[str] = []
"""Applications whose executors have been checked; a documented cache of at most ``_CHECKED_LIMIT``."""


def _functions() -> tuple[Callable[..., str], Callable[..., Iterator[Any]]]:
    """The functions that tasks run. Nested functions are pickled by value; their imports happen where they run."""

    def look(names: Iterable[str]) -> str:
        import importlib.util
        import json
        import platform
        import socket
        import sys

        missing = [name for name in names if importlib.util.find_spec(name) is None]
        found = {"host": socket.gethostname(), "python": platform.python_version(), "path": sys.executable}
        return json.dumps({**found, "missing": missing})

    def look_and_prepare(
        names: Iterable[str], preparation: Mapping[str, Any], batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        import importlib

        import pyarrow

        environment = look(names)
        try:
            importlib.import_module("tfos_ml.agent.prewarm").prepare(**preparation)
        except Exception:  # this only saves time; a node will report what is wrong
            pass
        for batch in batches:
            yield pyarrow.record_batch([[environment] * len(batch)], ["found"])

    return look, look_and_prepare


def check_executors(spark: SparkSession, tasks: int) -> None:
    """Raise ``ClusterConfigError`` if the executors' Python lacks a package; not checked on Spark Connect."""
    if is_connect(spark):
        return
    context = spark.sparkContext
    if context.applicationId in _checked:
        return
    if is_local(spark):
        use_own_python(spark)
        _take(spark, _look_here(context.pythonExec))
    else:
        look, _ = _functions()
        looks = spark.sparkContext.parallelize([NEEDED] * tasks, tasks).map(look)
        _take(spark, _result(_start_job(spark, looks.collect), PROBE_SECONDS))


@contextlib.contextmanager
def prepared_executors(spark: SparkSession, tasks: int, preparation: Mapping[str, Any]) -> Iterator[None]:
    """Prepare the executors while the body runs, before the first cluster, of `tasks` nodes, of a classic session.

    Does nothing if executors have not registered yet. Raises as :func:`check_executors`, which then has nothing left to
    do. `preparation` has the arguments of :func:`tfos_ml.agent.prewarm.prepare`.
    """
    if is_connect(spark) or spark.sparkContext.applicationId in _checked or registered_slots(spark) < tasks:
        yield
        return
    if is_local(spark):
        for environment in _look_here(spark.sparkContext.pythonExec):
            check_found(environment)
    _, look_and_prepare = _functions()
    look = partial(look_and_prepare, NEEDED, preparation)
    # The same kind of job as that of the nodes, so that it warms up the right Python workers; RDDs use others.
    looks = map_in_arrow(spark.range(0, tasks, 1, tasks).repartition(tasks), look, "found string")
    job = _start_job(spark, lambda: [row.found for row in looks.collect()])
    try:
        yield
    except BaseException:
        job.cancel(PROBE_SECONDS)
        raise
    _take(spark, _result(job, PROBE_SECONDS))


def _take(spark: SparkSession, environments: list[dict[str, Any]]) -> None:
    for environment in environments:
        check_found(environment)
    if environments:
        _checked.append(spark.sparkContext.applicationId)
        del _checked[:-_CHECKED_LIMIT]


def check_found(environment: dict[str, Any]) -> None:
    """Raise ``ClusterConfigError`` if a Python lacks a package, or has another version than the driver's."""
    python, own = environment["python"], platform.python_version()
    where = f"The executors' Python ({environment['path']}, {python} on {environment['host']})"
    how = (
        f"The driver's is {sys.executable}. Have spark.pyspark.python, or PYSPARK_PYTHON, name one that has them, for "
        "instance os.environ['PYSPARK_PYTHON'] = sys.executable before the session starts."
    )
    if python.split(".")[:2] != own.split(".")[:2]:
        raise ClusterConfigError(f"{where} is not the driver's, {own}; Spark needs the same minor version. {how}")
    if environment["missing"]:
        raise ClusterConfigError(
            f"{where} has no package {' or '.join(environment['missing'])}. "
            f"Install what the driver has on every host. {how}"
        )


def _look_here(python: str) -> list[dict[str, Any]]:
    """In local mode: run the check in the executors' Python, unless it is this one."""
    program = shutil.which(python)
    if program is None or program == sys.executable:
        return [{"host": "", "python": platform.python_version(), "path": sys.executable, "missing": []}]
    look, _ = _functions()
    command = [program, "-c", f"{_FUTURE}{textwrap.dedent(inspect.getsource(look))}\nprint(look({NEEDED}))"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=True, env={**os.environ}
        )
        return [json.loads(done.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError):  # Spark will say why
        return []


def _start_job(spark: SparkSession, action: Callable[[], list[str]]) -> SparkJob:
    return SparkJob(spark, f"{PROBE_TAG}{uuid.uuid4().hex[:12]}", action)


def _result(job: SparkJob, seconds: float) -> list[dict[str, Any]]:
    """What it has found; nothing if it does not end in time, or fails."""
    if not job.wait(seconds):
        job.cancel(PROBE_SECONDS)
    return [json.loads(found) for found in job.result or []]
