"""What nodes print and log, shown on the driver; see ``agent/node_output.py``."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from tfos_ml.driver.progress import CLEAR_LINE

if TYPE_CHECKING:
    from tfos_ml.driver.control_server import ControlServer

SHOWN_SECONDS = 0.2


class OutputPrinter:
    """Writes the nodes' lines on the driver's stderr from a thread, until the server that takes them is closed."""

    def __init__(self, server: ControlServer):
        self._server = server
        self._thread = threading.Thread(target=self._run, name="node output", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        while self._server.is_open:
            write_lines(self._server.nodes.take_lines(SHOWN_SECONDS))
        write_lines(self._server.nodes.take_lines(0))

    def close(self, timeout: float) -> None:
        """Wait until the lines of a closed server are written."""
        if self._thread.ident is not None:
            self._thread.join(timeout)


def write_lines(lines: list[str]) -> None:
    """Write lines on stderr; on a terminal in place of the bar that Spark may have drawn."""
    if lines:
        sys.stderr.write((CLEAR_LINE if sys.stderr.isatty() else "") + "\n".join(lines) + "\n")
        sys.stderr.flush()
