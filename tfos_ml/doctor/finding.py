"""What a check has found: one line, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"
_MOST_CHARACTERS = 600


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    check : str
        What was looked at.
    status : str
        ``"ok"``, ``"warning"`` (works, with a drawback), ``"failed"`` or ``"skipped"``.
    said : str
        What was found.
    advice : str
        What to do; empty where there is nothing to do.
    """

    check: str
    status: str
    said: str
    advice: str = ""


def ok(check: str, said: str) -> Finding:
    """A green line."""
    return Finding(check, OK, said)


def warning(check: str, said: str, advice: str) -> Finding:
    """A yellow line: it works, with the drawback that `said` tells."""
    return Finding(check, WARNING, shortened(said), advice)


def failed(check: str, said: object, advice: str) -> Finding:
    """A red line."""
    return Finding(check, FAILED, shortened(str(said)), advice)


def skipped(check: str, why: str) -> Finding:
    """A check that another finding made impossible."""
    return Finding(check, SKIPPED, why)


def shortened(text: str) -> str:
    """A message on one line; Java's frames are left out."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    joined = " ".join(lines)
    return joined if len(joined) <= _MOST_CHARACTERS else f"{joined[:_MOST_CHARACTERS]}..."


def has_failed(findings: Iterable[Finding]) -> bool:
    """Whether any line is red."""
    return any(one.status == FAILED for one in findings)
