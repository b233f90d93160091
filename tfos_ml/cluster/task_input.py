"""Whether the rows that Spark gave a Python task are all there are.

When a task's input fails in the JVM (a shuffle block that cannot be fetched, say), Spark closes the
stream to the Python worker, where both Arrow's reader and the one for RDDs take that for the end of
the rows. A whole stream is followed by Spark's own end marker, on the same connection; it stays
readable until the task has returned. Python tasks are not given that connection, so it is found in the
worker's ``main(infile, outfile)``, which Spark 3.5 to 4.3 have alike.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

from tfos_ml.errors import InputLostError

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
LOST = (
    "Spark could not read all rows of the node: a shuffle block or a source failed on the way, for instance because "
    "the executor that held it was lost. With maxRestarts the fit begins again; the executor's log has the cause"
)


def whole(items: Iterable[Item]) -> Iterator[Item]:
    """The input of a Spark Python task, proven whole at its end.

    Parameters
    ----------
    items : iterable
        What Spark passed to the function of ``mapInArrow`` or ``mapPartitions``.

    Raises
    ------
    InputLostError
        Where `items` end although Spark had more; Spark reports the cause instead, if it ends the task with one.
    """
    yield from items
    if not _is_marked_whole(_task_stream()):
        raise InputLostError(LOST)


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
