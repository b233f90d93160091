"""What nodes print and say, on its way to the driver, and shown there.

A node sends its lines with its reports, some a second; of more it sends only how many they were. Where the
driver cannot be called (Spark Connect), they come home with the node's report.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from tfos_ml.agent.process import LimitedLines
from tfos_ml.driver.progress import CLEAR_LINE

if TYPE_CHECKING:
    from tfos_ml.agent.progress_link import ProgressLink
    from tfos_ml.driver.cluster_server import ClusterServer

LINES_A_SECOND = 100  # of a node, and of all nodes of a large cluster but for one each
LINE_LENGTH = 2_000
KEPT_LINES = 1_000  # that wait for the end of a node's task
SHOWN_SECONDS = 0.2
SAID, ALL = 1, 2
"""Values of ``verbose``: what train functions say with ``ctx.log``, and all that their processes print."""


class NodeOutput:
    """A node's end.

    Parameters
    ----------
    label : str
        The node's role and index, which its lines begin with.
    verbose : int
        What is sent: nothing below ``SAID``, all with ``ALL``.
    size : int
        Number of nodes of the cluster.

    Attributes
    ----------
    printed : LimitedLines or None
        Takes the lines that the node's process prints; None if nobody wants them.
    """

    def __init__(self, label: str, verbose: int, size: int):
        self._label = label
        self._verbose = verbose
        self._link: ProgressLink | None = None
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self._limited = LimitedLines(self._send, max(1, LINES_A_SECOND // size))
        self.printed = self._limited if verbose >= ALL else None

    def connect(self, link: ProgressLink) -> None:
        """Send what there is, and what comes, over a link to the driver."""
        self._link = link
        while self._kept:
            self._pass_on(self._kept.popleft())

    def say(self, text: str) -> None:
        """Take what the train function says with ``ctx.log``."""
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


class OutputPrinter:
    """Writes the nodes' lines on the driver's stderr while a cluster runs, from a thread.

    Parameters
    ----------
    server : ClusterServer
        What takes them; when it is closed, the thread ends.
    """

    def __init__(self, server: ClusterServer):
        self._server = server
        self._thread = threading.Thread(target=self._run, name="node output", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._server.is_open:
            write_lines(self._server.take_lines(SHOWN_SECONDS))
        write_lines(self._server.take_lines(0))

    def close(self, timeout: float) -> None:
        """Wait until the lines of a closed server are written."""
        self._thread.join(timeout)


def write_lines(lines: list[str]) -> None:
    """Write lines on stderr; on a terminal in place of the bar that Spark may have drawn."""
    if lines:
        sys.stderr.write((CLEAR_LINE if sys.stderr.isatty() else "") + "\n".join(lines) + "\n")
        sys.stderr.flush()
