"""Whether the rows that Spark gave a Python task are all there are.

When a task's input fails in the JVM (a shuffle block that cannot be fetched, say), Spark closes the
stream to the Python worker, where both Arrow's reader and the one for RDDs take that for the end of
the rows. A whole stream is followed by Spark's own end marker, on the same connection; it stays
readable until the task has returned. Python tasks are not given that connection, so it is found in the
worker's ``main(infile, outfile)``, which Spark 3.5 to 4.3 have alike.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

from tfos_ml.errors import InputLostError

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
WAIT_SECONDS = 0.1
LOST = (
    "Spark could not read all rows of the node: a shuffle block or a source failed on the way, for instance because "
    "the executor that held it was lost. With maxRestarts the fit begins again; the executor's log has the cause"
)


def whole(items: Iterable[Item]) -> Iterator[Item]:
    """The input of a Spark Python task, proven whole at its end.

    Raises ``InputLostError`` where `items` end although Spark had more; Spark reports the cause instead, if it ends the
    task with one.
    """
    return _whole(items, _task_stream())


def _whole(items: Iterable[Item], stream: Any) -> Iterator[Item]:
    yield from items
    if not _is_marked_whole(stream):
        raise InputLostError(LOST)


def as_they_come(items: Iterable[Item]) -> Iterator[Item | None]:
    """The same items, and None whenever the next one lets itself be waited for.

    Spark may take as long as it likes to give a task its next rows, and a supervisor has to watch its process, and
    answer it, all the while. So a thread reads one item ahead.
    """
    arrived: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(1)
    closed = threading.Event()

    def read() -> None:
        last: BaseException = StopIteration()
        try:
            for item in items:
                _put(arrived, (item, None), closed)
                if closed.is_set():
                    return
        except BaseException as error:  # raised where the items are used
            last = error
        _put(arrived, (None, last), closed)

    threading.Thread(target=read, name="input", daemon=True).start()
    try:
        while True:
            try:
                item, error = arrived.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                yield None
                continue
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item
    finally:
        closed.set()


def _put(into: queue.Queue[Item], item: Item, closed: threading.Event) -> None:
    """Wait for room, unless nobody wants items any more."""
    while not closed.is_set():
        with contextlib.suppress(queue.Full):
            into.put(item, timeout=WAIT_SECONDS)
            return


def _task_stream() -> Any:
    """The connection on which this Spark task's input came; None where it is not found."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "main" and "infile" in frame.f_code.co_varnames:
            return frame.f_locals["infile"]
        frame = frame.f_back
    return None


def _is_marked_whole(stream: Any) -> bool:
    if not hasattr(stream, "peek"):
        logger.warning("This Spark's Python worker does not tell whether its input was whole")
        return True
    return bool(stream.peek(1))
