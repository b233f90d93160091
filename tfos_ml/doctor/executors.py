"""One job whose tasks look at their host, call the driver, and read what it has sent; and what that says."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

import tfos_ml
from tfos_ml.common.redact import redact
from tfos_ml.common.sessions import is_connect, is_local
from tfos_ml.common.spark_api import map_in_arrow
from tfos_ml.doctor import storage
from tfos_ml.doctor.deadline import PREFIX, OutOfTimeError, within
from tfos_ml.doctor.finding import Finding, failed, ok, warning
from tfos_ml.doctor.host import HostFacts, judge_hosts, look_at_host
from tfos_ml.doctor.network import (
    ADVICE_LISTENING,
    ADVICE_TO_CLIENT,
    ADVICE_TO_DRIVER,
    ADVICE_TO_NODE,
    Connections,
    driver_server,
    try_connections,
)
from tfos_ml.doctor.software import version_of
from tfos_ml.driver.job_errors import typed_error
from tfos_ml.driver.preflight import allocates_dynamically, registered_slots
from tfos_ml.driver.probe import check_executors
from tfos_ml.driver.spark_job import SparkJob
from tfos_ml.errors import ClusterConfigError, DestinationError
from tfos_ml.protocol.addresses import node_ports
from tfos_ml.protocol.artifacts import Artifact, publish
from tfos_ml.protocol.codec import decode_text, encode_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROBE_SECONDS, LOOK_SECONDS, CANCEL_SECONDS = 20.0, 20.0, 3.0
STORAGE_SECONDS, CLEANUP_SECONDS = 10.0, 5.0
ARTIFACT_BYTES = 300 << 10  # more than goes along in a task
MOST_TASKS = 200
SAME = ("tfos_ml", "tensorflow", "keras")  # nodes that differ in these are refused, or train apart
PYTHON_ADVICE = (
    "Install what the driver has on every host, and have spark.pyspark.python, or PYSPARK_PYTHON, name the Python that "
    "has it."
)


@dataclass(frozen=True)
class Look:
    """What one task has found; a problem is empty if there is none."""

    host: HostFacts
    python: str
    versions: dict[str, str]
    connections: Connections
    artifact: str
    storage: str


@dataclass(frozen=True)
class Assignment:
    """What the tasks are to look at."""

    control: dict[str, str]
    ports: range
    artifact: Artifact
    content: bytes
    directory: str  # a URI, empty if the driver could not write there


def examine(spark: SparkSession, nodes: int, directory: str | None, left: Callable[[float], float]) -> list[Finding]:
    """Look at the executors of a session.

    Parameters
    ----------
    spark : SparkSession
        The session.
    nodes : int
        Tasks to start where slots cannot be counted.
    directory : str, optional
        Where models are to go; by default the driver's working directory.
    left : callable
        Seconds that a step of at most so many may take; raises ``OutOfTimeError``.
    """
    try:
        within(left(PROBE_SECONDS), lambda: check_executors(spark, nodes))
    except ClusterConfigError as error:
        return [failed("Executors' Python", error, f"This driver's Python is {sys.executable}.")]
    except OutOfTimeError as error:
        return [failed("Executors' Python", f"no task has looked at it: {error}", "Do other jobs hold all slots?")]
    try:
        with driver_server(spark) as control, _directory(spark, directory or "", left) as (uri, unwritable):
            content = secrets.token_bytes(ARTIFACT_BYTES)
            artifact = within(left(LOOK_SECONDS), lambda: publish(spark, content))
            looks = _looks(spark, nodes, Assignment(control, node_ports(spark), artifact, content, uri), left)
            stored = _judge_storage(looks, uri, unwritable, directory is not None, left)
    except ClusterConfigError as error:
        return [failed("Driver's port", error, "Free the port, or set spark.tfos_ml.port to another (0: any).")]
    except OutOfTimeError as error:
        return [failed("Executors", f"no task has answered: {error}", "Do other jobs hold all slots?")]
    except Exception as error:  # whatever Spark raises
        return [failed("Executors", redact(typed_error(error, spark)), PYTHON_ADVICE)]
    return [*judge(spark, looks), *stored]


def _looks(spark: SparkSession, nodes: int, assignment: Assignment, left: Callable[[float], float]) -> list[Look]:
    """One look from each task; raises as the job does, and ``OutOfTimeError``."""
    barrier = not allocates_dynamically(spark)
    tasks = nodes if is_connect(spark) or not barrier else min(max(nodes, registered_slots(spark)), MOST_TASKS)
    tasks = nodes if is_local(spark) else tasks  # which are all of one host
    df = spark.range(0, tasks, 1, tasks)
    looks = map_in_arrow(df, partial(look, assignment), "found string", barrier=barrier, profile=None)
    job = SparkJob(spark, f"{PREFIX}-{uuid.uuid4().hex[:12]}", lambda: [row.found for row in looks.collect()])
    if not job.wait(seconds := left(LOOK_SECONDS)):
        job.cancel(CANCEL_SECONDS)
        raise OutOfTimeError(f"the job has not ended within {seconds:.0f} s")
    if job.error is not None:
        raise job.error
    return [decode_text(Look, found) for found in job.result]


def look(assignment: Assignment, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The task: one row with what it has found."""
    for _ in batches:
        pass
    found = Look(
        host=look_at_host(),
        python=platform.python_version(),
        versions={name: _own_version(name) for name in SAME},
        connections=try_connections(assignment.control, assignment.ports),
        artifact=_read(assignment.artifact, assignment.content),
        storage=storage.read_and_write(assignment.directory, uuid.uuid4().hex) if assignment.directory else "",
    )
    yield pa.record_batch([[encode_text(found)]], ["found"])


def _own_version(package: str) -> str:
    return tfos_ml.__version__ if package == "tfos_ml" else version_of(package) or "none"


def _read(artifact: Artifact, content: bytes) -> str:
    try:
        return "" if artifact.read() == content else "it has another content"
    except OSError as error:
        return redact(error)


@contextlib.contextmanager
def _directory(spark: SparkSession, directory: str, left: Callable[[float], float]) -> Iterator[tuple[str, str]]:
    """A new directory there, and why it cannot be written to, if so; deleted at the end."""
    try:
        uri = storage.directory_for(spark, directory)
        within(left(STORAGE_SECONDS), lambda: storage.write_first(uri))
    except (OSError, DestinationError, OutOfTimeError) as error:
        yield "", f"{redact(directory or os.getcwd())}: {redact(error)}"
        return
    try:
        yield uri, ""
    finally:
        with contextlib.suppress(OSError, OutOfTimeError):
            within(CLEANUP_SECONDS, lambda: storage.remove(uri))


def judge(spark: SparkSession, looks: list[Look]) -> list[Finding]:
    """What the tasks' looks say, but for storage."""
    found = [_same_versions(looks)]
    if not is_local(spark):
        found += judge_hosts([one.host for one in looks], "executors")
    to_driver = ADVICE_TO_CLIENT if is_connect(spark) else ADVICE_TO_DRIVER
    late = warning if is_connect(spark) else failed
    found.append(_line("Executors to driver", [one.connections.to_driver for one in looks], late, to_driver))
    if not any(one.connections.to_driver for one in looks):
        found.append(_line("Driver to executors", [one.connections.to_node for one in looks], warning, ADVICE_TO_NODE))
    found.append(_line("Nodes' ports", [one.connections.listening for one in looks], failed, ADVICE_LISTENING))
    advice = (
        "Models reach executors this way: check spark.local.dir there, and that they reach the driver's file server."
    )
    found.append(_line("Artifacts", [one.artifact for one in looks], failed, advice))
    return found


def _line(check: str, problems: list[str], bad: Callable[[str, str, str], Finding], advice: str) -> Finding:
    """One line about all tasks: the first of their problems, or that there is none."""
    real = sorted({problem for problem in problems if problem})
    if real:
        return bad(check, f"{sum(map(bool, problems))} of {len(problems)} tasks: {real[0]}", advice)
    return ok(check, f"{len(problems)} of {len(problems)} tasks")


def _same_versions(looks: list[Look]) -> Finding:
    check = "Executors' Python"
    mine = {"Python": platform.python_version(), **{name: _own_version(name) for name in SAME}}
    for one in looks:
        theirs = {"Python": one.python, **one.versions}
        other = [name for name in mine if theirs[name] != mine[name] and mine[name] != "none"]
        if other:
            name = other[0]
            said = f"{one.host.host} has {name} {theirs[name]}, the driver {mine[name]}"
            is_patch = name == "Python" and theirs[name].split(".")[:2] == mine[name].split(".")[:2]
            return (warning if is_patch else failed)(check, said, PYTHON_ADVICE)
    hosts = {one.host.host for one in looks}
    shown = ", ".join(f"{name} {version}" for name, version in {"Python": looks[0].python, **looks[0].versions}.items())
    return ok(check, f"{shown} on {len(hosts)} host{'s' * (len(hosts) > 1)}")


def _judge_storage(
    looks: list[Look], uri: str, unwritable: str, is_named: bool, left: Callable[[float], float]
) -> list[Finding]:
    """Whether the driver and all tasks wrote to the same directory; one that nobody named need not be shared."""
    check, bad = "Storage", failed if is_named else warning
    advice = (
        "modelDir, and exportDir, need storage that the driver and all executors write to: name it with --dir, as "
        "hdfs://host:port/path or s3://bucket/path."
    )
    if unwritable:
        return [bad(check, f"the driver cannot write to {unwritable}", advice)]
    shown = redact(uri.rpartition("/")[0])
    problems = [one.storage for one in looks]
    if any(problems):
        line = _line(check, problems, bad, advice)
        return [Finding(check, line.status, f"{shown}, {line.said}", advice)]
    try:
        seen = within(left(STORAGE_SECONDS), lambda: storage.written_by(uri))
    except (OSError, OutOfTimeError) as error:
        return [bad(check, f"the driver cannot read {shown}: {redact(error)}", advice)]
    if seen < len(looks):
        return [bad(check, f"{shown}: the driver sees {seen} of {len(looks)} files of the executors", advice)]
    return [ok(check, f"{shown} is written and read by the driver and {len(looks)} tasks")]
