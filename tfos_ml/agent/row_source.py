"""The interface to the rows of a node, which come from its Spark task or from feed tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from tfos_ml.data.spool import SpoolDirectories
from tfos_ml.protocol.control_messages import ProgressAnswer
from tfos_ml.protocol.messages import Message, RowCounts
from tfos_ml.protocol.node_task import NodeTask

WINDOW_BYTES = 256 << 20
"""Unread bytes, at most, for a train function that reads its rows once."""

Send = Callable[[Message], None]
"""Sends a message to the TensorFlow process without waiting for it."""


class RowSource(Protocol):
    """Writes rows to the spool and announces them to the TensorFlow process."""

    location: str | None  # where feed tasks connect, if they feed this node
    rows: dict[str, int]  # by stream, "train" and "validation"
    skipped: int  # rows left out by ``handleInvalid="skip"``
    size: int  # bytes of the other rows
    example: bytes | None  # features of the first rows as an Arrow stream, if the run wants an example

    def start(self) -> None:
        """Prepare for rows."""
        return

    def check(self) -> None:
        """Raise an error that occurred outside of :meth:`feed`."""
        return

    def feed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[float]:
        """Write rows until there are no more, or the train function wants no more.

        Yields whenever the supervisor may check its
        process; the value is the number of seconds for which there is nothing to do.
        """
        ...

    def handle_message(self, message: Message) -> bool:
        """Handle a message of the process; False if it is not about rows."""
        ...

    def take_answer(self, answer: ProgressAnswer) -> None:
        """Handle an answer of the driver; called in a thread."""
        return

    def counts(self) -> RowCounts | None:
        """What the other nodes need to agree on the steps; None if not known yet."""
        ...

    def progress(self) -> dict[str, Any]:
        """The fields of :class:`NodeProgress` about rows."""
        ...

    def finish(self) -> None:
        """Announce the end of the input to the process."""
        ...

    def close(self) -> None:
        """Stop taking rows, because the train function has ended."""
        return

    def stop(self) -> None:
        """Stop serving, because the node ends."""
        return


MakeRowSource = Callable[[NodeTask, SpoolDirectories, Send], RowSource]
