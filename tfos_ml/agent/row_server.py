"""The Arrow Flight server of a node: feed tasks send it rows and take results.

``DoPut`` brings the rows of one partition to train on, ``DoExchange`` rows to infer from and
their results. Only members of the run are let in; orders are JSON; nothing is unpickled. What is
malformed is refused, and the refusal says why.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from tfos_ml import errors
from tfos_ml.agent.row_receiver import Exchange, RowReceiver
from tfos_ml.data import blocks
from tfos_ml.data.spool import Chunk
from tfos_ml.protocol.addresses import Endpoint
from tfos_ml.protocol.claims import DriverClaims
from tfos_ml.protocol.control_messages import ExchangeOrder, PutOrder
from tfos_ml.protocol.transport import Service, TransportServer


class RowServer(TransportServer):
    """Listens from construction until :meth:`close`."""

    def __init__(self, inlet: RowReceiver, endpoint: Endpoint | str, token: str, claims: DriverClaims):
        self._receiver = inlet
        self._claims = claims
        super().__init__(
            endpoint, token, Service(puts={PutOrder: self._put}, exchanges={ExchangeOrder: self._exchange})
        )

    def _put(self, order: PutOrder, reader: Any, writer: Any) -> None:
        """Take a partition; each block is acknowledged, so that the task waits while there is no room.

        The last answer is written once the rows are before the train function, here or on the node that another
        attempt of the task has fed.
        """
        _check(order)
        chunks: list[Chunk] = []
        wanted, is_whole = True, False
        try:
            for message in _messages(reader):
                is_whole = blocks.is_end(message)
                if not is_whole:
                    blocks.check(message)
                wanted = wanted and self._receiver.wait_for_room(order.feed_timeout)
                if wanted and not is_whole:
                    chunks.append(self._receiver.store(message))
                writer.write(json.dumps({"wanted": wanted}).encode())
            if wanted and is_whole:
                self._hand_over(order, chunks)
                writer.write(json.dumps({"wanted": True, "settled": True}).encode())
        finally:
            self._receiver.discard(chunks)

    def _hand_over(self, order: PutOrder, chunks: list[Chunk]) -> None:
        """Put a whole partition before the train function if it is granted; `chunks` keeps what is to be discarded.

        It does not matter whether the feed task still listens. What cannot be settled with the driver ends the node,
        and so the cluster: rows might be missing, or come twice.
        """
        claim = order.number, order.partition, order.claimant
        try:
            is_granted = self._claims.take(*claim)
        except Exception:
            self._give_back(*claim)
            raise
        if not is_granted:
            return
        rows = sum(chunk.rows for chunk in chunks)
        try:
            self._receiver.commit(order.stream, chunks, order.epochs, order.feed_timeout)
            chunks.clear()
            self._claims.commit(*claim, rows)
        except Exception as error:
            self._receiver.fail(_unsettled(error))
            raise

    def _give_back(self, number: int, partition: int, claimant: str) -> None:
        try:
            self._claims.release(number, partition, claimant)
        except Exception as error:
            self._receiver.fail(_unsettled(error))

    def _exchange(self, order: ExchangeOrder, reader: Any, writer: Any) -> None:
        """Give one result for each row, in order."""
        exchange = self._receiver.open_exchange(order.feed_timeout)
        try:
            asking = _Asking(self._receiver, exchange, order.stream, reader)
            writer.begin(blocks.MESSAGE_SCHEMA)
            for answer in asking.answers():
                writer.write_batch(answer)
        finally:
            self._receiver.close_exchange(exchange)


class _Asking:
    """Reads the rows of an exchange in a thread of its own, while results go back."""

    def __init__(self, inlet: RowReceiver, exchange: Exchange, stream: str, reader: Any):
        self._receiver = inlet
        self._exchange = exchange
        self._stream = stream
        self._reader = reader
        self._rows = 0
        self._all_asked = False
        self._refused: Exception | None = None
        threading.Thread(target=self._read, name="exchange", daemon=True).start()

    def _read(self) -> None:
        problem = "the node failed to read the rows"
        try:
            problem = self._ask_all()
        except pa.ArrowInvalid as error:
            self._refused = error
        except (pa.ArrowException, OSError) as error:  # the task is gone, or there is no room
            problem = str(error)
        finally:  # wakes a reader that waits for a last answer that will not come
            self._all_asked = True
            self._exchange.answers.put(problem)

    def _ask_all(self) -> str:
        for message in _messages(self._reader):
            blocks.check(message)
            if not self._receiver.wait_for_room(self._exchange.feed_timeout):
                return ""  # the receiver has put the reason among the answers
            self._rows += blocks.unpack(message)[0]
            self._receiver.ask(self._stream, self._exchange, message)
        return ""

    def answers(self) -> Iterator[pa.RecordBatch]:
        answered = 0
        while not (self._all_asked and answered == self._rows):
            answer = self._exchange.answers.get()
            if self._refused is not None:
                break
            if isinstance(answer, pa.RecordBatch):
                answered += blocks.unpack(answer)[0]
                yield answer
            elif answer:
                raise flight.FlightServerError(f"{self._rows - answered} rows have no result: {answer}")
        if self._refused is not None:
            raise self._refused


def _unsettled(error: Exception) -> errors.NodeLostError:
    return errors.NodeLostError(f"it cannot be settled with the driver which rows of a feed count: {error}")


def _check(order: PutOrder) -> None:
    counts = (order.number, order.partition, order.epochs)
    if min(counts) < 0:
        raise pa.ArrowInvalid(f"malformed order: number, partition and epochs must count. Got: {counts}")
    if not (order.claimant and order.stream):
        raise pa.ArrowInvalid("malformed order: claimant and stream must be names")


def _messages(reader: Any) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            yield reader.read_chunk().data
        except StopIteration:
            return
