"""Each report of a fit counts once. Its readers (the progress bar, MLflow, a search) need not look for repetitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class FitReports:
    """Leaves out what a node's result repeats of what the node has reported live, and what a restart trains again."""

    def __init__(self) -> None:
        self._attempt = 0
        self._counts: dict[str, int] = {}  # reports of this attempt, by node
        self._reported_in: dict[tuple[str, int], int] = {}  # attempts, by node and epoch

    def begin(self) -> None:
        self._attempt += 1
        self._counts.clear()

    def new(self, reports: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The reports that have not come before; each has a number if it can come again."""
        return [report for report in reports if self._is_new(report)]

    def _is_new(self, report: dict[str, Any]) -> bool:
        label, number, epoch = report["label"], report.get("number"), report["epoch"]
        if number is not None:
            if number < self._counts.get(label, 0):
                return False
            self._counts[label] = number + 1
        if epoch is None or not report["shown"]:  # metrics of the system
            return True
        return self._reported_in.setdefault((label, epoch), self._attempt) == self._attempt
