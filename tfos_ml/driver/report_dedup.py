"""Removes duplicates from nodes' calls, which may come twice, late or out of order: each report counts once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfos_ml.protocol.control_messages import ReportProgress


@dataclass
class _Link:
    name: str
    calls: int = 0  # number of the latest call
    reports: int = 0  # how many have been taken


class Links:
    """Finds the new reports among nodes' calls; for one thread at a time."""

    def __init__(self) -> None:
        self._links: dict[int, _Link] = {}
        self._ended: set[str] = set()

    def take(self, call: ReportProgress) -> tuple[list[dict[str, Any]], bool]:
        """The new reports of a call, and whether it is the latest call of its node."""
        if call.link in self._ended:
            return [], False
        link = self._links.get(call.rank)
        if link is None or link.name != call.link:
            self.end(call.rank)
            link = self._links[call.rank] = _Link(call.link)
        new = call.reports[max(0, link.reports - call.first_report) :]
        link.reports = max(link.reports, call.first_report + len(call.reports))
        is_latest = call.number > link.calls
        link.calls = max(link.calls, call.number)
        return new, is_latest

    def end(self, rank: int) -> None:
        """Accept nothing more over the link of a node."""
        link = self._links.pop(rank, None)
        if link is not None:
            self._ended.add(link.name)
