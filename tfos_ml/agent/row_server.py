"""The Arrow Flight server of a node: feed tasks send it rows and take results.

``DoPut`` takes the rows of one partition for training. ``DoExchange`` takes rows for inference and returns their
results. Only members of the run may connect, and nothing is unpickled. Malformed requests are refused with the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from tfos_ml import errors
from tfos_ml.agent.row_receiver import InferenceCall, RowReceiver
from tfos_ml.data import blocks
from tfos_ml.data.spool import Chunk
from tfos_ml.protocol.addresses import Endpoint
from tfos_ml.protocol.codec import encode
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import (
    GRANTED,
    PENDING,
    ClaimPartition,
    CommitPartition,
    InferRows,
    PutPartition,
    ReleasePartition,
)
from tfos_ml.protocol.transport import Service, TransportServer


class RowServer(TransportServer):
    """Listens from construction until :meth:`close`."""

    def __init__(self, receiver: RowReceiver, endpoint: Endpoint | str, token: str, grants: GrantClient):
        self._receiver = receiver
        self._grants = grants
        super().__init__(endpoint, token, Service(puts={PutPartition: self._put}, exchanges={InferRows: self._infer}))

    def _put(self, call: PutPartition, reader: Any, writer: Any) -> None:
        """Take a partition; each block is acknowledged, so that the task waits while there is no space.

        The last answer is sent once the train function can read the rows, here or on the node that another attempt of
        the task has fed.
        """
        _check(call)
        chunks: list[Chunk] = []
        wanted, is_whole = True, False
        try:
            for message in _messages(reader):
                is_whole = blocks.is_end(message)
                if not is_whole:
                    blocks.check(message)
                wanted = wanted and self._receiver.wait_for_room(call.feed_timeout)
                if wanted and not is_whole:
                    chunks.append(self._receiver.store(message))
                writer.write(encode({"wanted": wanted}))
            if wanted and is_whole:
                self._hand_over(call, chunks)
                writer.write(encode({"wanted": True, "settled": True}))
        finally:
            self._receiver.discard(chunks)

    def _hand_over(self, call: PutPartition, chunks: list[Chunk]) -> None:
        """Announce a whole partition to the train function if it is granted; `chunks` keeps what must be discarded.

        The feed task may have ended. If the driver does not answer, the node fails, and so does the cluster, because
        rows might be missing or doubled.
        """
        claim = call.number, call.partition, call.claimant
        try:
            is_granted = self._grants.take(*claim)
        except Exception:
            self._give_back(*claim)
            raise
        if not is_granted:
            return
        rows = sum(chunk.rows for chunk in chunks)
        try:
            self._receiver.commit(call.stream, chunks, call.epochs, call.feed_timeout)
            chunks.clear()
            self._grants.commit(*claim, rows)
        except Exception as error:
            self._receiver.fail(_unsettled(error))
            raise

    def _give_back(self, number: int, partition: int, claimant: str) -> None:
        try:
            self._grants.release(number, partition, claimant)
        except Exception as error:
            self._receiver.fail(_unsettled(error))

    def _infer(self, call: InferRows, reader: Any, writer: Any) -> None:
        """Return one result for each row, in the same call."""
        inference = self._receiver.open_inference(call.feed_timeout)
        rows = _InferenceReader(self._receiver, inference, call.stream, reader)
        try:
            writer.begin(blocks.MESSAGE_SCHEMA)
            for answer in rows.answers():
                writer.write_batch(answer)
        except flight.FlightServerError as error:
            writer.write_metadata(str(error).encode())  # so that the task sends no more
            raise
        finally:
            self._receiver.close_inference(inference)
            rows.wait()


class GrantClient:
    """A node's access to the driver's grants, for several threads; repeats calls for `patience` seconds."""

    def __init__(self, client: ControlClient, patience: float):
        self._client = client
        self._patience = patience

    def take(self, number: int, partition: int, claimant: str) -> bool:
        """Claim a partition; returns whether it is granted. Waits while another claimant has it and has not committed.

        Raises ``pyarrow.ArrowException`` if the driver's answer is not known. Then nothing may be committed.
        """
        deadline = time.monotonic() + self._patience
        while True:
            state = self._client.call_reliably(ClaimPartition(number, partition, claimant), self._patience)
            if state != PENDING:
                return state == GRANTED
            if time.monotonic() > deadline:
                raise flight.FlightUnavailableError(
                    f"partition {partition} is granted to another attempt, which has not committed it for "
                    f"{self._patience:g} s"
                )

    def commit(self, number: int, partition: int, claimant: str, rows: int) -> None:
        """Report that the rows have been handed to the train function; raises as :meth:`take`."""
        self._client.call_reliably(CommitPartition(number, partition, claimant, rows), self._patience)

    def release(self, number: int, partition: int, claimant: str) -> None:
        """Report that the rows will not be handed to the train function; raises as :meth:`take`."""
        self._client.call_reliably(ReleasePartition(number, partition, claimant), self._patience)


class _InferenceReader:
    """Reads the rows of one inference in a thread of its own, while results go back."""

    def __init__(self, receiver: RowReceiver, inference: InferenceCall, stream: str, reader: Any):
        self._receiver = receiver
        self._inference = inference
        self._stream = stream
        self._reader = reader
        self._rows = 0
        self._all_read = False
        self._refused: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="inference", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the task sends no more: gRPC frees the reader with the call, and reading then would crash."""
        self._thread.join()

    def _read(self) -> None:
        problem = "the node failed to read the rows"
        try:
            problem = self._read_all()
        except pa.ArrowInvalid as error:
            self._refused = error
        except (pa.ArrowException, OSError) as error:  # the task has ended, or there is no space
            problem = str(error)
        finally:  # wakes a reader that waits for an answer that will not come
            self._all_read = True
            self._inference.answers.put(problem)

    def _read_all(self) -> str:
        for message in _messages(self._reader):
            blocks.check(message)
            if not self._receiver.wait_for_room(self._inference.feed_timeout):
                return ""  # the receiver has put the reason among the answers
            self._rows += blocks.unpack(message)[0]
            self._receiver.infer(self._stream, self._inference, message)
        return ""

    def answers(self) -> Iterator[pa.RecordBatch]:
        answered = 0
        while not (self._all_read and answered == self._rows):
            answer = self._inference.answers.get()
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
    return errors.NodeLostError(f"the driver cannot confirm which rows of a feed count: {error}")


def _check(call: PutPartition) -> None:
    counts = (call.number, call.partition, call.epochs)
    if min(counts) < 0:
        raise pa.ArrowInvalid(f"malformed request: number, partition and epochs must be counts. Got: {counts}")
    if not (call.claimant and call.stream):
        raise pa.ArrowInvalid("malformed request: claimant and stream must be names")


def _messages(reader: Any) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            yield reader.read_chunk().data
        except StopIteration:
            return
