"""Where the metrics of a fit arrive: each epoch counts once, for the bar, MLflow and searches alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tfos_ml.protocol.messages import Report

Receiver = Callable[[list[Report]], None]


class FitReports:
    """Calls the receivers with new reports, without epochs that an earlier attempt has reported."""

    def __init__(self, receivers: Sequence[Receiver]):
        self._receivers = receivers
        self._attempt = 0
        self._reported_in: dict[tuple[str, int], int] = {}  # attempts, by node and epoch

    def begin(self) -> None:
        """Begin an attempt."""
        self._attempt += 1

    def take(self, reports: Iterable[Report]) -> None:
        """Pass on the reports of this attempt that count."""
        new = [
            report
            for report in reports
            if report.epoch is None
            or self._reported_in.setdefault((report.label, report.epoch), self._attempt) == self._attempt
        ]
        for receive in self._receivers if new else ():
            receive(new)
