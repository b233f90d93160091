"""The report: a line for each finding as it comes, or all as JSON; and the console, which Spark's lines stay off."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TextIO

import tfos_ml
from tfos_ml.doctor.finding import FAILED, OK, SKIPPED, WARNING, Finding, has_failed

_MARKS = {OK: "ok  ", WARNING: "WARN", FAILED: "FAIL", SKIPPED: "skip"}
_COLORS = {OK: "32", WARNING: "33", FAILED: "31", SKIPPED: "2"}
_TAIL_BYTES = 20_000
WIDTH = 110


def line(finding: Finding, colored: bool) -> str:
    """A finding as text: its line, and one with what to do."""
    mark = _MARKS[finding.status]
    mark = f"\x1b[{_COLORS[finding.status]}m{mark}\x1b[0m" if colored else mark
    first, *more = _wrapped(f"{finding.check}: {finding.said}")
    advice = _wrapped(f"-> {finding.advice}") if finding.advice else []
    return "\n".join([f"{mark} {first}", *(f"     {one}" for one in [*more, *advice])])


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)  # paths stay whole


def is_colored(stream: TextIO) -> bool:
    """Whether lines may have colors: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def summary(findings: Sequence[Finding], seconds: float) -> str:
    """The last line."""
    counts = [f"{sum(one.status == status for one in findings)} {status}" for status in (OK, WARNING, FAILED, SKIPPED)]
    return f"{', '.join(counts)} in {seconds:.0f} s"


def as_json(findings: Sequence[Finding], seconds: float) -> str:
    """All findings as one JSON object: ``ok``, ``version``, ``seconds`` and ``findings``."""
    content = {
        "ok": not has_failed(findings),
        "version": tfos_ml.__version__,
        "seconds": round(seconds, 1),
        "findings": [asdict(one) for one in findings],
    }
    return json.dumps(content, indent=2)


@contextlib.contextmanager
def quiet_console(verbose: bool) -> Iterator[Callable[[], str]]:
    """Have this process, and those that it starts, write their errors into a file; yields what reads its end."""
    if verbose:
        yield lambda: ""
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def tail() -> str:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - _TAIL_BYTES)
            return os.pread(file.fileno(), _TAIL_BYTES, start).decode(errors="replace")

        try:
            yield tail
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
