"""Removes duplicates from nodes' calls, which may come twice, late or out of order: each report counts once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfos_ml.protocol.control_messages import ReportProgress


@dataclass
class _Sender:
    name: str
    calls: int = 0  # number of the latest call
    reports: int = 0  # how many have been taken


class ReportDeduplicator:
    """Finds the new reports among nodes' calls; for one thread at a time."""

    def __init__(self) -> None:
        self._senders: dict[int, _Sender] = {}
        self._ended: set[str] = set()

    def take(self, call: ReportProgress) -> tuple[list[dict[str, Any]], bool]:
        """The new reports of a call, and whether it is the latest call of its node."""
        if call.link in self._ended:
            return [], False
        sender = self._senders.get(call.rank)
        if sender is None or sender.name != call.link:
            self.end(call.rank)
            sender = self._senders[call.rank] = _Sender(call.link)
        new = call.reports[max(0, sender.reports - call.first_report) :]
        sender.reports = max(sender.reports, call.first_report + len(call.reports))
        is_latest = call.number > sender.calls
        sender.calls = max(sender.calls, call.number)
        return new, is_latest

    def end(self, rank: int) -> None:
        """Accept nothing more over the link of a node."""
        sender = self._senders.pop(rank, None)
        if sender is not None:
            self._ended.add(sender.name)
