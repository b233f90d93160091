"""The door of a node through which feed tasks hand in rows and take results: Arrow Flight.

``DoPut`` brings the rows of one partition to train on, ``DoExchange`` rows to infer from and
their results. Only members of the run are let in; orders are JSON; nothing is unpickled.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from tfos_ml.cluster.addresses import Endpoint
from tfos_ml.cluster.transport import TransportServer, close_server, read_message
from tfos_ml.feed import blocks
from tfos_ml.feed.inlet import Exchange, Inlet
from tfos_ml.feed.spool import Chunk

_PUT = {"number": int, "stream": str, "partition": int, "epochs": int}
_EXCHANGE = {"stream": str}


class FeedEndpoint(TransportServer):
    """Listens from construction until :meth:`close`.

    Parameters
    ----------
    inlet : Inlet
        Takes the rows.
    endpoint : Endpoint or str
        Where it listens, as of :class:`TransportServer`.
    token : str
        The run's.
    claim : callable
        ``claim(number, partition)`` asks the driver whether the rows of this partition are to be taken, which it
        grants once.
    """

    def __init__(self, inlet: Inlet, endpoint: Endpoint | str, token: str, claim: Callable[[int, int], bool]):
        super().__init__(endpoint, token)
        self._inlet = inlet
        self._claim = claim

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        """Take a partition; each block is acknowledged, so that the task waits while there is no room."""
        order = read_message(descriptor.command, _PUT)
        chunks: list[Chunk] = []
        wanted, is_whole = True, False
        try:
            for message in _messages(reader):
                is_whole = blocks.is_end(message)
                wanted = wanted and self._inlet.wait_for_room()
                if wanted and not is_whole:
                    chunks.append(self._inlet.store(message))
                writer.write(json.dumps({"wanted": wanted}).encode())
            if wanted and is_whole and self._claim(order["number"], order["partition"]):
                self._inlet.commit(order["stream"], chunks, order["epochs"])
                chunks = []
        finally:
            self._inlet.discard(chunks)

    def do_exchange(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        """Give one result for each row, in order."""
        order = read_message(descriptor.command, _EXCHANGE)
        exchange = self._inlet.open_exchange()
        asking = _Asking(self._inlet, exchange, order["stream"], reader)
        try:
            writer.begin(blocks.MESSAGE_SCHEMA)
            for answer in asking.answers():
                writer.write_batch(answer)
        finally:
            self._inlet.close_exchange(exchange)

    def close(self) -> None:
        """Stop listening."""
        close_server(self)


class _Asking:
    """Reads the rows of an exchange in a thread of its own, while results go back."""

    def __init__(self, inlet: Inlet, exchange: Exchange, stream: str, reader: Any):
        self._inlet = inlet
        self._exchange = exchange
        self._stream = stream
        self._reader = reader
        self._asked = 0
        self._all_asked = False
        threading.Thread(target=self._read, name="exchange", daemon=True).start()

    def _read(self) -> None:
        problem = ""
        try:
            for message in _messages(self._reader):
                if not self._inlet.wait_for_room():
                    return  # why, the inlet has said among the answers
                self._asked += blocks.unpack(message)[0]
                self._inlet.ask(self._stream, self._exchange, message)
        except (pa.ArrowException, OSError) as error:  # the task is gone, or there is no room
            problem = str(error)
        self._all_asked = True
        self._exchange.answers.put(problem)  # wakes whoever waits for a last answer that will not come

    def answers(self) -> Iterator[pa.RecordBatch]:
        answered = 0
        while not (self._all_asked and answered == self._asked):
            answer = self._exchange.answers.get()
            if isinstance(answer, pa.RecordBatch):
                answered += blocks.unpack(answer)[0]
                yield answer
            elif answer:
                raise flight.FlightServerError(f"{self._asked - answered} rows have no result: {answer}")


def _messages(reader: Any) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            yield reader.read_chunk().data
        except StopIteration:
            return
