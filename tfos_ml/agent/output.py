"""What a node's process prints and its train function logs: on its way to the executor's log, and to the driver.

A process may print without end. So the log gets at most ``LINES_A_SECOND`` lines of it a second, the driver as many of
all nodes together, and both get the count of the rest.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO

from tfos_ml.agent.outbox import Outbox
from tfos_ml.protocol.messages import LogLine

LINES_A_SECOND = 100
LINE_LENGTH = 2_000  # characters that are passed on
TAIL_LINES = 40  # for errors
LOGGED, ALL = 1, 2
"""Values of ``verbose``: the lines of ``ctx.log``, or everything that the processes print."""


class LimitedLines:
    """Passes on a limited number of lines a second, without their ends, and counts the rest."""

    def __init__(self, pass_on: Callable[[str], None], lines_a_second: int = LINES_A_SECOND):
        self._pass_on = pass_on
        self._limit = lines_a_second
        self._lock = threading.Lock()
        self._second = 0.0
        self._lines = 0

    def take(self, line: str) -> None:
        """Pass a line on, or count it."""
        with self._lock:
            if time.monotonic() - self._second >= 1.0:
                self._pass_on_count()
                self._second, self._lines = time.monotonic(), 0
            self._lines += 1
            if self._lines <= self._limit:
                self._pass_on(line.removesuffix("\n"))

    def _pass_on_count(self) -> None:
        left_out = self._lines - self._limit
        if left_out > 0:
            self._pass_on(f"({left_out:,} lines left out: more than {self._limit} a second)")

    def end(self) -> None:
        """Report how many lines were left out since the last report."""
        with self._lock:
            self._pass_on_count()
            self._lines = 0


class NodeOutput:
    """Brings lines to the driver, over the node's `outbox`; `size` nodes share the number of lines a second."""

    def __init__(self, label: str, verbose: int, size: int, outbox: Outbox):
        self._label = label
        self._verbose = verbose
        self._outbox = outbox
        self._limited = LimitedLines(self._send, max(1, LINES_A_SECOND // size))
        self.printed = self._limited if verbose >= ALL else None  # for lines that the node's process prints

    def log(self, text: str) -> None:
        """Take a line that the train function logs with ``ctx.log``."""
        if self._verbose >= LOGGED:
            for line in text.splitlines():
                self._limited.take(line)

    def _send(self, line: str) -> None:
        more = len(line) - LINE_LENGTH
        line = line if more <= 0 else f"{line[:LINE_LENGTH]} ({more:,} characters left out)"
        self._outbox.add(LogLine(f"[{self._label}] {line}"))


class OutputRelay:
    """Copies a process's output to this process's stderr, with a label, and to `others`; keeps its last lines."""

    def __init__(self, stream: IO[str], label: str, others: LimitedLines | None = None):
        self._stream = stream
        self._label = label
        self._readers = [LimitedLines(self._write), *([others] if others else [])]
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(target=self._relay, name=f"relay {label}", daemon=True)
        self._thread.start()

    def _relay(self) -> None:
        with self._stream:
            for line in _cut_lines(self._stream):
                self._tail.append(line)
                for reader in self._readers:
                    reader.take(line)
        for reader in self._readers:
            reader.end()

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the disk of the log is full: the process must not notice
            sys.stderr.write(f"[{self._label}] {line}\n")

    def tail(self, timeout: float) -> str:
        """The last lines, once the output has ended or `timeout` seconds have passed."""
        self._thread.join(timeout)
        return "".join(list(self._tail))


def _cut_lines(stream: IO[str]) -> Iterator[str]:
    """The lines of a stream, with their ends; of a long one the first ``LINE_LENGTH`` characters."""
    while line := stream.readline(LINE_LENGTH):
        left_out, part = 0, line
        while not part.endswith("\n") and (part := stream.readline(LINE_LENGTH)):
            left_out += len(part.rstrip("\n"))
        yield f"{line} ({left_out:,} characters left out)\n" if left_out else line.removesuffix("\n") + "\n"
