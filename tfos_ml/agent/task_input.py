"""Checks that a Python task has received all of its rows from Spark.

If a task's input fails in the JVM (for instance because a shuffle block cannot be fetched), Spark closes the stream to
the Python worker. Arrow's reader and the one for RDDs both take that for the end of the rows. After a complete stream,
Spark sends its own end marker on the same connection, which stays readable until the task has returned. Python tasks
have no access to that connection, so it is looked up in the worker's ``main(infile, outfile)``, which is the same in
Spark 3.5 to 4.3.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from types import FrameType
from typing import Any, TypeVar

from tfos_ml.common.timeouts import POLL_SECONDS
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
    return chain(items, _check_end(_task_stream()))


def _check_end(stream: Any) -> Iterator[Any]:
    """No items; raises ``InputLostError`` where the input has ended too early."""
    if not _is_marked_complete(stream):
        raise InputLostError(INPUT_LOST)
    yield from ()


def polled(items: Iterable[Item]) -> Iterator[Item | None]:
    """The same items, and None whenever the next one is not there yet.

    Spark may take any time to provide a task's next rows, and meanwhile a supervisor must watch and answer its
    process. So a thread reads two items ahead.
    """
    arrived: queue.SimpleQueue[tuple[Item | None, BaseException | None]] = queue.SimpleQueue()
    room, closed = threading.Semaphore(1), threading.Event()

    def read() -> None:
        last: BaseException = StopIteration()
        try:
            for item in items:
                arrived.put((item, None))
                room.acquire()
                if closed.is_set():
                    return
        except BaseException as error:  # raised where the items are used
            last = error
        arrived.put((None, last))

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
            room.release()
            yield item
    finally:
        closed.set()
        room.release()


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
