"""Each epoch of a fit counts once: what a restart trains again is left out for the bar, MLflow and searches alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class FitReports:
    """Leaves out the metrics of epochs that an earlier attempt has reported."""

    def __init__(self) -> None:
        self._attempt = 0
        self._reported_in: dict[tuple[str, int], int] = {}  # attempts, by node and epoch

    def begin(self) -> None:
        self._attempt += 1

    def new(self, reports: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The reports of this attempt that count."""
        return [report for report in reports if self._counts(report)]

    def _counts(self, report: dict[str, Any]) -> bool:
        label, epoch = report["label"], report["epoch"]
        if epoch is None or not report["shown"]:  # metrics of the system
            return True
        return self._reported_in.setdefault((label, epoch), self._attempt) == self._attempt
