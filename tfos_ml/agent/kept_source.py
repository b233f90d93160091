"""Rows that lie on the node's host already, from an earlier fit on the same rows."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from tfos_ml.agent.row_source import RowSource, Send
from tfos_ml.data.kept_rows import KeptRows
from tfos_ml.protocol.messages import ChunkReady, ChunkReleased, EndOfInput, Message, Reading, RowCounts


def facts_of(counted: RowCounts, size: int, example: bytes | None) -> dict[str, Any]:
    """What a node knows of its rows, as JSON can have it."""
    shown = None if example is None else base64.b64encode(example).decode()
    return {"counted": asdict(counted), "size": size, "example": shown}


def knows_enough(wants_example: bool, facts: Mapping[str, Any]) -> bool:
    """Whether kept rows will do for a node, which may want an example of them."""
    return facts["example"] is not None or not wants_example


class KeptSource(RowSource):
    """Announces kept rows to the TensorFlow process; see :class:`RowSource`. Spark has none for the node."""

    location: str | None = None

    def __init__(self, rows: KeptRows, send: Send):
        self._chunks = rows.chunks
        self._send = send
        self._reading = Reading("", keeps_rows=False)
        self._counted = RowCounts(**rows.facts["counted"])
        self.rows = self._counted.rows
        self.skipped = self._counted.skipped
        self.size: int = rows.facts["size"]
        shown = rows.facts["example"]
        self.example = None if shown is None else base64.b64decode(shown)

    def feed(self, batches: Iterable[pa.RecordBatch | None]) -> Iterator[float]:
        """See :class:`RowSource`."""
        for stream, chunk in self._chunks:
            self._send(ChunkReady(stream, chunk))
        yield 0.0

    def take_up(self, message: Message) -> bool:
        """See :class:`RowSource`."""
        match message:
            case Reading():
                self._reading = message
            case ChunkReleased():
                Path(message.path).unlink()
            case _:
                return False
        return True

    def finish(self) -> None:
        """See :class:`RowSource`."""
        self._send(EndOfInput())

    def counts(self) -> RowCounts | None:
        """See :class:`RowSource`."""
        if self._reading.how == "get_data_feed":
            return RowCounts(why="reads with ctx.get_data_feed()")
        return self._counted

    def progress(self) -> dict[str, Any]:
        """See :class:`RowSource`."""
        return {"rows": sum(self.rows.values()), "complete": True}
