"""Shows the progress of a run, as a bar on a terminal or in a notebook, else as lines; and the lines of the nodes.

In a notebook, learning curves grow below the bar. A bar needs a terminal for itself. Files, pipes, and terminals on
which Spark draws a bar of its own get lines.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfos_ml.common.sessions import is_connect
from tfos_ml.common.timeouts import NOTICE_SECONDS, SHOWN_SECONDS
from tfos_ml.driver.learning_curves import svg
from tfos_ml.protocol.control_messages import NodeProgress
from tfos_ml.protocol.messages import Report
from tfos_ml.protocol.training_position import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tfos_ml.driver.control_server import ControlServer

logger = logging.getLogger(__name__)
CLEAR_LINE, SPARKS_BAR = "\r\x1b[2K", "\r" + 80 * " " + "\r"  # the second where nothing knows escapes: files, consoles
BAR_FORMAT = "{desc} {bar} {n_fmt}/{total_fmt} epochs [{elapsed}{postfix}]"


class Progress:
    """Shows rows fed, epoch, step and metrics of all attempts of a fit; a context manager around them.

    With `shares_terminal` Spark draws a bar of its own on the terminal.
    """

    def __init__(self, verbose: int, epochs: int, shares_terminal: bool = False):
        self._verbose = verbose  # 0 shows nothing, 1 a progress bar, 2 a line per epoch and what the nodes print
        self._epochs = epochs
        self._nodes, self._count = 0, ""
        self._attempt = 0
        self._metrics: dict[str, str] = {}
        self._said: set[str] = set()
        self._bar: Any = None
        self._shares_terminal = shares_terminal
        self._last_epoch = 0
        self._history: dict[str, dict[int, float]] = {}
        if verbose == 1:
            from tfos_ml.driver.notebook_bar import NotebookBar, is_notebook

            if is_notebook():
                self._bar = NotebookBar(epochs, BAR_FORMAT)
            elif sys.stderr.isatty() and not shares_terminal:
                from tqdm import tqdm

                self._bar = tqdm(total=epochs, bar_format=BAR_FORMAT, file=sys.stderr)

    def begin(self, nodes: int) -> None:
        """Begin an attempt with so many nodes."""
        self._nodes, self._count = nodes, f"{nodes} node{'s' if nodes > 1 else ''}"
        self._attempt += 1
        if self._bar is not None:
            self._bar.set_description_str(f"Starting {self._count}")

    def update(self, progress: Mapping[int, NodeProgress]) -> None:
        """Show the latest state of the nodes."""
        if self._bar is not None and progress:
            self._bar.set_description_str(self._stage(progress), refresh=False)
            at = _position(progress)
            rows = {} if at or self._metrics else {"rows": f"{sum(known.rows for known in progress.values()):,}"}
            step = {"step": f"{at.step:,}/{at.steps:,}"} if at else {}
            self._bar.set_postfix({**rows, **step, **self._metrics}, refresh=True)

    def say(self, line: str) -> None:
        """Show a line of its own, once."""
        if self._verbose == 0 or line in self._said:
            return
        self._said.add(line)
        self.write([line])

    def write(self, lines: Sequence[str]) -> None:
        """Show lines, beside the bar if there is one."""
        for line in lines if self._verbose else ():
            if self._bar is not None:
                self._bar.write(line, file=sys.stderr)
            else:
                self._print(line)

    def _print(self, line: str) -> None:
        """Write a line to stdout; or, in place of a bar, to stderr. It replaces a bar that Spark has drawn."""
        if self._verbose == 2:
            print((CLEAR_LINE if sys.stdout.isatty() and self._shares_terminal else "") + line, flush=True)
        else:
            print(_line_start(self._shares_terminal) + line, file=sys.stderr, flush=True)

    def show_end(self, restored: int | None) -> None:
        """Show that the training has stopped early, and the epoch, from 0, whose weights it has restored."""
        last, sentences = self._last_epoch, []
        if 0 < last < self._epochs:
            sentences.append(f"Stopped early after epoch {last} of {self._epochs}.")
        if last and restored is not None and restored + 1 != last:
            sentences.append(f"The model has the weights of epoch {restored + 1}.")
        if sentences:
            self.write([" ".join(sentences)])

    def _stage(self, progress: Mapping[int, NodeProgress]) -> str:
        if _position(progress) or (self._metrics and self._attempt == 1):
            return "Training"
        if len(progress) < self._nodes or not any(known.rows for known in progress.values()):
            return f"Starting {self._count}"
        fed = all(known.complete for known in progress.values())
        return "Waiting for the first report" if fed else f"Feeding {self._count}"

    def show(self, reports: Iterable[Report]) -> None:
        """Show new metrics of the chief and the evaluator."""
        for report in reports if self._verbose else ():
            if report.system:
                continue
            shown = {name: f"{value:.4g}" for name, value in report.metrics.items()}
            self._metrics.update(shown)
            if report.epoch is None:
                continue
            self._last_epoch = max(self._last_epoch, report.epoch + 1)
            if self._bar is not None:
                self._bar.n = max(self._bar.n, min(self._epochs, report.epoch + 1))
                self._draw_curves(report.epoch, report)
            else:
                values = " - ".join(f"{name}: {value}" for name, value in shown.items())
                self._print(f"Epoch {report.epoch + 1}/{self._epochs} [{report.label}] {values}")

    def _draw_curves(self, epoch: int, report: Report) -> None:
        if not hasattr(self._bar, "curves"):  # on a terminal
            return
        start = "eval_" if report.label.startswith("evaluator") else ""  # as in summary.history
        for name, value in report.metrics.items():
            self._history.setdefault(start + name, {})[epoch] = value
        self._bar.curves = svg({name: list(series.values()) for name, series in self._history.items()})

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Leave the last state on the screen: where a failed training was, or what a finished one has reached."""
        if self._bar is None:
            return
        self._bar.set_description_str("Failed" if kind else "Trained", refresh=False)
        if not kind:
            self._bar.n = self._bar.n or self._epochs  # fewer if the training stopped early
            self._bar.set_postfix(self._metrics, refresh=False)
        self._bar.refresh()
        self._bar.close()


class WaitNotice:
    """Says once which nodes the run waits for after the chief has ended."""

    def __init__(self) -> None:
        self._said = False

    def update(self, progress: Mapping[int, NodeProgress]) -> None:
        waiting = [known.works_on for known in progress.values() if known.works_on is not None]
        if waiting and not self._said and max(node.seconds for node in waiting) > NOTICE_SECONDS:
            self._said = True
            labels = ", ".join(node.label for node in waiting)
            logger.warning("The chief has ended. Waiting for %s to return, at most %g s", labels, waiting[0].limit)


def _position(progress: Mapping[int, NodeProgress]) -> Position | None:
    return next((known.trained for known in progress.values() if known.trained), None)


def _line_start(shares_terminal: bool) -> str:
    """What removes a bar of Spark's from the line that stderr is on."""
    if sys.stderr.isatty():
        return CLEAR_LINE
    return SPARKS_BAR if shares_terminal else ""


def draws_stages(spark: SparkSession) -> bool:
    """Whether Spark draws a bar of its own on the terminal."""
    return not is_connect(spark) and spark.conf.get("spark.ui.showConsoleProgress", "false") == "true"


class NodesWatch:
    """Writes the nodes' lines to the driver's stderr, and notices silent nodes, in a thread.

    It ends when the server that receives the lines is closed. `expire_leases` is called several times a second,
    whatever the user's program does meanwhile.
    """

    def __init__(self, server: ControlServer, expire_leases: Callable[[], None]):
        self._server, self._note_silent = server, expire_leases
        self._thread = threading.Thread(target=self._run, name="nodes watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while self._server.is_open:
            write_lines(self._server.nodes.take_lines(SHOWN_SECONDS))
            self._note_silent()
        write_lines(self._server.nodes.take_lines(0))

    def close(self, timeout: float) -> None:
        """Wait until the lines of a closed server are written."""
        if self._thread.ident is not None:
            self._thread.join(timeout)


def write_lines(lines: list[str]) -> None:
    """Write lines to stderr; on a terminal they replace a bar that Spark has drawn."""
    if lines:
        sys.stderr.write((CLEAR_LINE if sys.stderr.isatty() else "") + "\n".join(lines) + "\n")
        sys.stderr.flush()
