"""``doctor``, as a command: its arguments, the order of the checks, and the exit code."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tfos_ml.doctor import host, report, session, software
from tfos_ml.doctor.deadline import Deadline, OutOfTimeError
from tfos_ml.doctor.finding import Finding, failed, has_failed, skipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 50.0  # which leaves time to cancel a job and to stop the session, within a minute
DESCRIPTION = "Check whether this host, Spark and its executors can train, and say what to do if not."
EPILOG = "Exit code 0: nothing has failed; 1: something has. Warnings do not count."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    In a program with a Spark session, a notebook say, it looks at that session, which goes on.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; by default those of this process.

    Returns
    -------
    int
        0 if nothing has failed, 1 if something has.

    Examples
    --------
    >>> from tfos_ml.doctor.command import main
    >>> main(["doctor", "--master", "local[2]"])                    # doctest: +SKIP
    0
    """
    arguments = _parser().parse_args(argv)
    began = time.monotonic()
    findings: list[Finding] = []
    colored = report.is_colored(sys.stdout)
    with report.quiet_console(arguments.verbose) as console:
        for finding in examine(arguments, console):
            findings.append(finding)
            if not arguments.json:
                sys.stdout.write(report.line(finding, colored) + "\n")
                sys.stdout.flush()
    seconds = time.monotonic() - began
    told = report.as_json(findings, seconds) if arguments.json else report.summary(findings, seconds)
    sys.stdout.write(told + "\n")
    return int(has_failed(findings))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tfos_ml", description="Command line of tfos_ml.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", description=DESCRIPTION, epilog=EPILOG, help=DESCRIPTION)
    where = doctor.add_mutually_exclusive_group()
    where.add_argument(
        "--master", help="Spark master, for instance local[2] or yarn; by default as Spark is configured"
    )
    where.add_argument("--remote", help="Spark Connect server, for instance sc://host:15002")
    doctor.add_argument(
        "--conf", action="append", default=[], type=_setting, metavar="k=v", help="a setting of Spark; may be repeated"
    )
    doctor.add_argument("--nodes", type=_positive, default=2, help="nodes that are to run at once (default 2)")
    doctor.add_argument(
        "--dir", help="directory or URI for models and checkpoints, which driver and executors write to"
    )
    doctor.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"for all checks together (default {SECONDS:.0f})"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    doctor.add_argument("--verbose", action="store_true", help="leave what Spark prints on the console")
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected k=v, got {text!r}")
    return name, value


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)


def examine(arguments: argparse.Namespace, console: Callable[[], str]) -> Iterator[Finding]:
    """All findings as they come; `console` has the end of what was printed meanwhile."""
    deadline = Deadline(arguments.seconds, SECONDS)
    conf = dict(arguments.conf)
    master = arguments.master or conf.get("spark.master") or "local[*]"
    present = session.active_session() if software.version_of("pyspark") is not None else None
    before = [
        *software.check_python(),
        *software.check_packages(tensorflow_runs_here=not arguments.remote and master.startswith("local")),
        *([] if arguments.remote or present is not None else software.check_java()),
        *host.check_names(conf.get("spark.driver.host")),
        *host.judge_hosts([host.look_at_host()], "this host"),
    ]
    yield from before
    if any(one.check == "Java" and one.status == "failed" for one in before) or software.version_of("pyspark") is None:
        yield skipped("Spark session", "there is no Spark without the above; the checks that need one are left out")
        return
    yield from _with_session(present, arguments, conf, deadline, console)


def _with_session(
    present: SparkSession | None,
    arguments: argparse.Namespace,
    conf: dict[str, str],
    deadline: Deadline,
    console: Callable[[], str],
) -> Iterator[Finding]:
    """Look at the session that is present; else at one of its own, which it stops."""
    try:
        spark = present or session.start(arguments.master, arguments.remote, conf, deadline.left(session.START_SECONDS))
    except Exception as error:
        yield session.not_started(error, console(), arguments.remote)
        return
    try:
        yield session.described(spark)
        yield from _of_session(spark, arguments, deadline)
    finally:
        if present is None:
            session.stop(spark)


def _of_session(spark: SparkSession, arguments: argparse.Namespace, deadline: Deadline) -> Iterator[Finding]:
    """What there is to say of a session: settings, slots, executors, and fits if all that is well."""
    from tfos_ml.doctor import executors, training

    steps: list[tuple[str, Callable[[], list[Finding]]]] = [
        ("Spark settings", lambda: session.judge_settings(spark)),
        (
            "Task slots",
            lambda: session.judge_slots(spark, arguments.nodes, deadline.left(session.SLOTS_SECONDS)),
        ),
        ("Executors", lambda: executors.examine(spark, arguments.nodes, arguments.dir, deadline.left)),
        (f"{arguments.nodes} nodes meet", lambda: training.check_meeting(spark, arguments.nodes, deadline.left)),
        ("Fit and transform", lambda: training.check_fit(spark, arguments.nodes, deadline.left)),
    ]
    blocked = ""
    for check, step in steps:
        if blocked:
            yield skipped(check, f"after what was found at '{blocked}'")
            continue
        try:
            found = step()
        except OutOfTimeError as error:
            found = [failed(check, error, "Run it again with more time, as --seconds 180.")]
        yield from found
        blocked = next((one.check for one in found if one.status == "failed"), "")
