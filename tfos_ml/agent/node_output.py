"""Brings the lines that nodes print and log to the driver.

A node sends its lines with its progress reports. It sends a limited number of lines a second, and only the count of
the rest. Where nodes cannot call the driver (Spark Connect), the lines come with the node's final report.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tfos_ml.agent.child_process import LINE_LENGTH, LimitedLines

if TYPE_CHECKING:
    from tfos_ml.agent.progress_link import ProgressLink

LINES_A_SECOND = 100  # of all nodes together; each may send at least one
KEPT_LINES = 1_000  # for the node's final report
SAID, ALL = 1, 2
"""Values of ``verbose``: the lines of ``ctx.log``, or everything that the processes print."""


class NodeOutput:
    """The node's side; `size` is the number of nodes, which share the number of lines a second."""

    def __init__(self, label: str, verbose: int, size: int):
        self._label = label
        self._verbose = verbose
        self._link: ProgressLink | None = None
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self._limited = LimitedLines(self._send, max(1, LINES_A_SECOND // size))
        self.printed = self._limited if verbose >= ALL else None  # for lines that the node's process prints

    def connect(self, link: ProgressLink) -> None:
        """Send all lines so far, and later ones, over a link to the driver."""
        self._link = link
        while self._kept:
            self._pass_on(self._kept.popleft())

    def say(self, text: str) -> None:
        """Take a line that the train function logs with ``ctx.log``."""
        if self._verbose >= SAID:
            for line in text.splitlines():
                self._limited.take(line)

    def _send(self, line: str) -> None:
        more = len(line) - LINE_LENGTH
        line = line if more <= 0 else f"{line[:LINE_LENGTH]} ({more:,} characters left out)"
        self._pass_on(f"[{self._label}] {line}")

    def _pass_on(self, line: str) -> None:
        if self._link is not None:
            self._link.report({"line": line})
        else:
            self._kept.append(line)

    def facts(self) -> dict[str, Any]:
        """Lines that could not be sent, for the node's report."""
        return {"lines": list(self._kept)} if self._kept else {}
