"""Feed tasks: how a Spark task sends the rows of its partition to a node, for ``TFCluster.train`` and ``.inference``.

For training, the driver assigns each partition to a node (``driver/partitions.py``). For inference, rows go
to a node on the task's own host if there is one, else to any other node. If a node cannot be reached or refuses rows,
the task raises the failure of the cluster, if there is one. Each attempt of a task has its own name (``claimant``),
to which the driver grants the partition.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from tfos_ml import errors
from tfos_ml.agent.task_input import checked_complete
from tfos_ml.common.session_settings import NODE_PORTS
from tfos_ml.common.timeouts import FEED_TIMEOUT, LEASE_SECONDS, WHY_SECONDS
from tfos_ml.data import blocks, rdd_to_arrow
from tfos_ml.data.arrow import to_storage
from tfos_ml.data.arrow_to_rdd import field_of, to_elements
from tfos_ml.protocol.addresses import ControlAddress, address_towards
from tfos_ml.protocol.codec import decode
from tfos_ml.protocol.control_client import NO_ANSWER, ControlClient
from tfos_ml.protocol.control_messages import (
    AssignPartition,
    ClusterOutcome,
    GetCommitted,
    GetOutcome,
    InferRows,
    PutPartition,
)
from tfos_ml.protocol.failure import Failure, NodeFailure, find_failure
from tfos_ml.protocol.transport import command, connect

MAX_BLOCKS_AHEAD = 8
_KEEPALIVE = dict.fromkeys(  # a silent node counts as gone after 20 s: 10 until it is pinged, 10 for its answer
    ["grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"], 10_000
)


@dataclass(frozen=True)
class FeedNode:
    """A node that takes rows."""

    rank: int
    host: str
    location: str
    label: str  # "worker:1"


@dataclass(frozen=True)
class FeedSpec:
    """What feed tasks need to know."""

    number: int  # which call of ``train`` or ``inference`` this is
    stream: str  # name of the queue
    nodes: tuple[FeedNode, ...]
    control: ControlAddress
    epochs: int = 1  # how often the rows are read; 0: until the train function stops reading
    patience: float = LEASE_SECONDS  # seconds to wait for an answer of the driver
    feed_timeout: float = FEED_TIMEOUT  # seconds that rows may wait on a node without one being read


FED_SCHEMA = "partition int, rows long"


def _partition() -> int:
    """The number of the partition that this Spark task computes."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return int(context.partitionId())


def feed_elements(spec: FeedSpec, partition: int, elements: Iterable[Any]) -> Iterator[tuple[int, int | None]]:
    """Feed the elements of an RDD's partition; yields its number and their count, None if no node wants them."""
    yield partition, _put(spec, partition, rdd_to_arrow.to_batches(checked_complete(elements)))


def feed_batches(spec: FeedSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Feed the rows of a DataFrame's partition; yields its number and their count, null if no node wants them."""
    partition = _partition()
    fed = _put(spec, partition, map(_plain_batch, checked_complete(batches)))
    yield pa.RecordBatch.from_pydict(
        {"partition": pa.array([partition], pa.int32()), "rows": pa.array([fed], pa.int64())}
    )


def infer_elements(spec: FeedSpec, partition: int, elements: Iterable[Any]) -> Iterator[Any]:
    """A result for each element of an RDD's partition, in order."""
    for answer in _infer(spec, partition, rdd_to_arrow.to_batches(checked_complete(elements))):
        yield from to_elements(answer, lists=True)


def infer_batches(spec: FeedSpec, results: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a DataFrame's partition with the columns of their results."""
    given: deque[pa.RecordBatch] = deque()

    def remembered() -> Iterator[pa.RecordBatch]:
        for batch in checked_complete(batches):
            if batch.num_rows:
                given.append(batch)
                yield _plain_batch(batch)

    for answer in _infer(spec, _partition(), remembered()):
        columns = [_result_column(answer, position, wanted) for position, wanted in enumerate(results)]
        while columns[0]:
            rows_here = min(len(columns[0]), given[0].num_rows)
            batch, left = given[0].slice(0, rows_here), given.popleft().slice(rows_here)
            if left.num_rows:
                given.appendleft(left)
            result_columns = [column[:rows_here] for column in columns]
            columns = [column[rows_here:] for column in columns]
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *result_columns], names=[*batch.schema.names, *results.names]
            )


def _result_column(answer: pa.RecordBatch, position: int, wanted: pa.Field) -> pa.Array:
    """One column of the results, by name if they have names, else by position."""
    column = field_of(answer, wanted.name, position)
    try:
        return column.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise errors.ColumnTypeError(
            f"Results for column '{wanted.name}' are {column.type}, which cannot be cast to {wanted.type} ({error}). "
            "Pass schema= to inference() with the type that the train function returns."
        ) from None


def _plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([to_storage(column) for column in batch.columns], batch.schema.names)


def _put(spec: FeedSpec, partition: int, batches: Iterable[pa.RecordBatch]) -> int | None:
    """Send all rows to a node; returns how many it has committed, None if it wants no more."""
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return 0
    claimant = uuid.uuid4().hex
    put = PutPartition(spec.number, partition, claimant, spec.stream, spec.epochs, float(spec.feed_timeout))
    sent, is_settled, has_sent_all = 0, False, False
    with _NodeConnection(spec, partition, _assigned_node(spec, partition), may_end=True) as call:
        try:
            writer, reader = call.client.do_put(command(put), blocks.MESSAGE_SCHEMA, call.options)
            with writer:
                for batch in call.watched(chain([first], batches)):
                    writer.write_batch(blocks.pack([batch]))
                    if not _answer(reader)["wanted"]:
                        return None
                    sent += batch.num_rows
                has_sent_all = True
                writer.write_batch(blocks.END)
                writer.done_writing()
                if not _answer(reader)["wanted"]:
                    return None
                is_settled = bool(_answer(reader).get("settled"))  # this or another node has taken the rows over
        except call.BROKEN:
            if not (has_sent_all and call.has_committed(claimant)):
                raise
            is_settled = True  # only the answer was lost
    return sent if is_settled else None


def _answer(reader: Any) -> dict[str, Any]:
    """The node's answer to a block; it comes once the node has space for the next block."""
    answer = reader.read()
    if answer is None:
        raise ConnectionError("it has closed the connection")
    decoded: dict[str, Any] = decode(dict, answer.to_pybytes())
    return decoded


def _infer(spec: FeedSpec, partition: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Results of rows, in order; at most ``MAX_BLOCKS_AHEAD`` batches wait for theirs at a time."""
    waiting: deque[int] = deque()  # rows of each batch that waits for results
    with _NodeConnection(spec, partition, _nearest(spec, partition)) as call:
        writer, reader = call.client.do_exchange(
            command(InferRows(spec.stream, float(spec.feed_timeout))), call.options
        )
        with writer:
            writer.begin(blocks.MESSAGE_SCHEMA)
            source = call.watched(batches)
            batch = next(source, None)
            while batch is not None or waiting:
                while batch is not None and len(waiting) < MAX_BLOCKS_AHEAD:
                    writer.write_batch(blocks.pack([batch]))
                    waiting.append(batch.num_rows)
                    batch = next(source, None)
                    if batch is None:
                        writer.done_writing()
                chunk = reader.read_chunk()
                if chunk.data is None:
                    if batch is not None:
                        writer.done_writing()  # the node waits for it
                    raise flight.FlightServerError(chunk.app_metadata.to_pybytes().decode())
                answered, block = blocks.unpack(chunk.data)
                while answered:
                    part = min(answered, waiting[0])
                    answered -= part
                    waiting[0] -= part
                    if not waiting[0]:
                        waiting.popleft()
                yield from blocks.read(block)


def _assigned_node(spec: FeedSpec, partition: int) -> FeedNode:
    """The node to which the driver assigns a partition; after the end of the call any node, which refuses the rows."""
    host = address_towards(spec.control.location)
    try:
        with closing(ControlClient(spec.control)) as client:
            rank = client.call_reliably(AssignPartition(spec.number, partition, host), spec.patience)
    except pa.ArrowException:  # without the driver no partition is granted, and the node reports that
        rank = None
    return next((node for node in spec.nodes if node.rank == rank), spec.nodes[0])


def _nearest(spec: FeedSpec, partition: int) -> FeedNode:
    """A node on the task's own host if there is one; successive calls take the nodes in turn."""
    here = address_towards(spec.control.location)
    pool = [node for node in spec.nodes if node.host == here] or spec.nodes
    return pool[(spec.number + partition) % len(pool)]


class _NodeConnection:
    """A connection to a node; if it breaks, the error says why the cluster has ended, unless the cluster `may_end`."""

    BROKEN = (pa.ArrowException, StopIteration, OSError)

    def __init__(self, spec: FeedSpec, partition: int, node: FeedNode, may_end: bool = False):
        self._control = spec.control
        self._partition = spec.number, partition
        self._patience = spec.patience
        self._node = node
        self._may_end = may_end
        self._upstream: BaseException | None = None
        self.options = flight.FlightCallOptions()

    def __enter__(self) -> _NodeConnection:
        self.client = connect(self._node.location, self._control.token, _KEEPALIVE)
        return self

    def watched(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; an error while they are computed does not count as an error of the connection."""
        try:
            yield from batches
        except BaseException as error:
            self._upstream = error
            raise

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        self.client.close()
        if error is self._upstream or not isinstance(error, self.BROKEN):
            return False
        outcome = self._cluster_outcome()
        if self._may_end and self._node.rank in outcome.finished:
            return True
        failure = find_failure(outcome.failure or "")
        if failure is not None:
            if self._may_end:
                return True  # the driver raises it
            raise RuntimeError(f"The cluster has failed: {failure.to_error()}") from None
        message = (
            f"The node of rank {self._node.rank} at {self._node.location} cannot be reached from "
            f"{socket.gethostname()}, or it refuses the connection. If a firewall is between the executors, set "
            f"{NODE_PORTS} to ports that it lets through. {error}"
        )
        role, _, index = self._node.label.partition(":")
        raise NodeFailure(Failure(errors.NodeLostError, message, role, int(index), self._node.host)) from None

    def _cluster_outcome(self) -> ClusterOutcome:
        """How the cluster has ended, as soon as the driver knows it."""
        with closing(ControlClient(self._control)) as client:
            try:
                return client.call_reliably(GetOutcome(self._node.rank), WHY_SECONDS)
            except pa.ArrowException:
                return ClusterOutcome(None, [])

    def has_committed(self, claimant: str) -> bool:
        """Whether the node has committed the partition of this attempt; waits while it still may."""
        deadline = time.monotonic() + self._patience
        with closing(ControlClient(self._control)) as client, suppress(*NO_ANSWER):
            while True:
                answer = client.call_reliably(GetCommitted(*self._partition, claimant), self._patience)
                if answer.rows is not None:
                    return True
                if not answer.pending or answer.stop or time.monotonic() > deadline:
                    break
        return False
