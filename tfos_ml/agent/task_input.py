"""Checks that a Python task has received all of its rows from Spark.

If a task's input fails in the JVM (for instance because a shuffle block cannot be fetched), Spark closes the stream to
the Python worker. Arrow's reader and the one for RDDs both take that for the end of the rows. After a complete stream,
Spark sends its own end marker on the same connection, which stays readable until the task has returned. Python tasks
have no access to that connection, so it is looked up in the worker's ``main(infile, outfile)``, which is the same in
Spark 3.5 to 4.3.
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

from tfos_ml.common.limits import POLL_SECONDS
from tfos_ml.errors import InputLostError

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
INPUT_LOST = (
    "Spark could not read all rows of the node: a shuffle block or a source failed on the way, for instance because "
    "the executor that held it was lost. Set maxRestarts to repeat such fits. The executor's log has the cause"
)


def checked_complete(items: Iterable[Item]) -> Iterator[Item]:
    """The input of a Spark Python task, checked for completeness at its end.

    Raises ``InputLostError`` if `items` end although Spark had more. If Spark itself fails the task, Spark reports the
    cause instead.
    """
    return _checked(items, _task_stream())


def _checked(items: Iterable[Item], stream: Any) -> Iterator[Item]:
    yield from items
    if not _is_marked_complete(stream):
        raise InputLostError(INPUT_LOST)


def polled(items: Iterable[Item]) -> Iterator[Item | None]:
    """The same items, and None whenever the next one is not there yet.

    Spark may take any time to provide a task's next rows, and meanwhile a supervisor must watch and answer its
    process. So a thread reads one item ahead.
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
                item, error = arrived.get(timeout=POLL_SECONDS)
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
    """Wait for space, unless nobody wants more items."""
    while not closed.is_set():
        with contextlib.suppress(queue.Full):
            into.put(item, timeout=POLL_SECONDS)
            return


def _task_stream() -> Any:
    """The connection on which this Spark task's input came; None if it is not found."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "main" and "infile" in frame.f_code.co_varnames:
            return frame.f_locals["infile"]
        frame = frame.f_back
    return None


def _is_marked_complete(stream: Any) -> bool:
    if not hasattr(stream, "peek"):
        logger.warning("The Python worker of this Spark version does not tell whether its input was complete")
        return True
    return bool(stream.peek(1))
