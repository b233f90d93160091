"""``doctor``, as a command: its arguments, the order of the checks, the report, and the exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import tfos_ml
from tfos_ml.common.optional_packages import version_of
from tfos_ml.common.timeouts import DOCTOR_SECONDS, SESSION_STOP_SECONDS
from tfos_ml.doctor import host
from tfos_ml.doctor.host import FAILED, OK, SKIPPED, WARNING, Finding
from tfos_ml.doctor.platforms import check_platform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tfos_ml.doctor.session import Deadline

DESCRIPTION = "Check whether this host, Spark and its executors can train, and say what to do if not."
EPILOG = "Exit code 0: nothing has failed; 1: something has. Warnings do not count."
_MARKS = {OK: "ok  ", WARNING: "WARN", FAILED: "FAIL", SKIPPED: "skip"}
_WIDTH = 110
_NOT_STARTED = (
    "Check --master and --conf, and the addresses: spark.driver.host, spark.driver.bindAddress, SPARK_LOCAL_IP. What "
    "Spark printed above says more."
)
_NOT_REACHED = "Check that the Spark Connect server runs at the address of --remote."


def run(arguments: argparse.Namespace) -> int:
    """Check, and print what was found."""
    began = time.monotonic()
    findings: list[Finding] = []
    for finding in examine(arguments):
        findings.append(finding)
        if not arguments.json:
            print(_line(finding), flush=True)
    seconds, failed = time.monotonic() - began, any(item.status == FAILED for item in findings)
    if arguments.json:
        report = {"ok": not failed, "version": tfos_ml.__version__, "seconds": round(seconds, 1)}
        print(json.dumps({**report, "findings": [asdict(item) for item in findings]}, indent=2))
    else:
        counts = [f"{sum(item.status == status for item in findings)} {status}" for status in _MARKS]
        print(f"{', '.join(counts)} in {seconds:.0f} s")
    sys.stdout.flush()
    return int(failed)


def _line(finding: Finding) -> str:
    texts = [f"{finding.check}: {finding.message}", *([f"-> {finding.advice}"] if finding.advice else [])]
    lines = [line for text in texts for line in textwrap.wrap(text, _WIDTH, break_long_words=False)]
    return f"{_MARKS[finding.status]} " + "\n     ".join(lines)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``doctor`` to the command line."""
    doctor = commands.add_parser("doctor", description=DESCRIPTION, epilog=EPILOG, help=DESCRIPTION)
    where = doctor.add_mutually_exclusive_group()
    where.add_argument("--master", help="Spark master, as local[2] or yarn; by default as Spark is configured")
    where.add_argument("--remote", help="Spark Connect server, as sc://host:15002")
    doctor.add_argument(
        "--conf", action="append", default=[], type=_setting, metavar="k=v", help="a setting of Spark; may be repeated"
    )
    doctor.add_argument("--nodes", type=_positive, default=2, help="nodes that are to run at once (default 2)")
    doctor.add_argument(
        "--seconds", type=float, default=DOCTOR_SECONDS, help=f"for all checks (default {DOCTOR_SECONDS:.0f})"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    doctor.set_defaults(run=run)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected k=v, got {text!r}")
    return name, value


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)


def examine(arguments: argparse.Namespace) -> Iterator[Finding]:
    """All findings, as they come."""
    master = arguments.master or dict(arguments.conf).get("spark.master") or "local[*]"
    pyspark = version_of("pyspark")
    present = _active_session() if pyspark is not None else None
    yield host.check_python()
    yield from check_platform()
    yield from host.check_packages(tensorflow_runs_here=not arguments.remote and master.startswith("local"))
    yield from host.check_capacity("this host")
    if pyspark is None:
        yield Finding("Spark session", SKIPPED, "there is no pyspark; the checks that need it are left out")
        return
    if not arguments.remote and present is None:
        java = host.check_java(pyspark)
        yield java
        if java.status == FAILED:
            yield Finding("Spark session", SKIPPED, "there is no Spark without Java")
            return
    yield from _with_session(present, arguments)


def _active_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    try:
        return SparkSession.getActiveSession()
    except ImportError:  # a client of Spark Connect alone, which has not asked for one yet
        return None


def _with_session(present: SparkSession | None, arguments: argparse.Namespace) -> Iterator[Finding]:
    """Check the session of this program; without one, a session of its own, which it stops."""
    from tfos_ml.doctor.session import Deadline, failed

    deadline = Deadline(arguments.seconds)
    try:
        spark = present or deadline.run(lambda: _start(arguments))
    except Exception as error:
        yield failed("Spark session", error, _NOT_REACHED if arguments.remote else _NOT_STARTED)
        return
    try:
        yield from _of_session(spark, arguments.nodes, deadline)
    finally:
        if present is None:
            with contextlib.suppress(TimeoutError):  # what is left ends with this process
                Deadline(SESSION_STOP_SECONDS).run(spark.stop)


def _start(arguments: argparse.Namespace) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(arguments.remote) if arguments.remote else SparkSession.builder
    if arguments.master:
        builder = builder.master(arguments.master)
    quiet = {} if arguments.remote else {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    for name, value in {**quiet, **dict(arguments.conf)}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    assert spark.version  # a client of Spark Connect reaches its server only when it asks something
    return spark


def _of_session(spark: SparkSession, nodes: int, deadline: Deadline) -> Iterator[Finding]:
    """Settings and slots, executors, and a fit; what comes after a failure is skipped."""
    from tfos_ml.doctor import session

    steps: dict[str, Callable[[], list[Finding]]] = {
        "Spark session": lambda: session.check_session(spark, nodes),
        "Executors": lambda: session.check_tasks(spark, nodes, deadline),
        "Fit and transform": lambda: session.check_fit(spark, nodes, deadline),
    }
    failed_check = ""
    for check, step in steps.items():
        if failed_check:
            yield Finding(check, SKIPPED, f"not tried, since '{failed_check}' has failed")
            continue
        try:
            findings = step()
        except TimeoutError as error:
            findings = [session.failed(check, error, session.SLOW)]
        yield from findings
        failed_check = next((one.check for one in findings if one.status == FAILED), "")
