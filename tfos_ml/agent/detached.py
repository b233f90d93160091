"""``python -m tfos_ml.agent.detached``: a node's supervisor that outlives the task that started it.

Feeding jobs come and go, so the node cannot be their task. A task starts this process, in a
session of its own, and hands it what it needs through a pipe. It ends by itself when its
*owner* (the executor's JVM, the task, or the driver) dies, when the driver's host refuses
connections, or when the driver has not answered for the lease (``spark.tfos_ml.leaseTimeout``).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any

import psutil
import pyarrow as pa
import pyarrow.flight as flight

from tfos_ml import errors
from tfos_ml.agent.feeder import Feeder
from tfos_ml.agent.placement import GatherPlacement, Place, check_driver, place_of
from tfos_ml.agent.process import MARKER, child_environment
from tfos_ml.agent.row_receiver import RowReceiver
from tfos_ml.agent.row_server import RowServer
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.common.interpreter import module_command
from tfos_ml.data.schema import FeedSchema
from tfos_ml.data.spool import SpoolDirectories
from tfos_ml.protocol import results
from tfos_ml.protocol.addresses import node_endpoint
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.claims import DriverClaims
from tfos_ml.protocol.control_client import NO_ANSWER, RETRY_SECONDS, ControlClient
from tfos_ml.protocol.failure import NodeFailure
from tfos_ml.protocol.graces import LEASE_SECONDS, Limit
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.transport import connect

_JOINED = b"joined\n"


@dataclass(frozen=True)
class DetachedOrder:
    """What a task hands to the process.

    Attributes
    ----------
    task : NodeTask
        What the node does.
    place : Place
        Where it is.
    owner : int
        Process id of its owner.
    is_fed : bool
        Whether feed tasks bring it rows.
    """

    task: NodeTask = field(repr=False)
    place: Place
    owner: int
    is_fed: bool


def start_host(order: DetachedOrder) -> subprocess.Popen[bytes]:
    """Start the process; its standard output says when its node has joined, and ends with it."""
    environment = child_environment("", 1, {})
    del environment[MARKER]  # of the TensorFlow process alone
    process = subprocess.Popen(
        module_command("tfos_ml.agent.detached"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=environment,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:
        pickle.dump(order, process.stdin)
    return process


def start_node(task: NodeTask, fed: bool, rank: int) -> None:
    """In a Spark task: start a node; with rows from feed tasks return once it has joined, else when it has ended."""
    from pyspark import TaskContext

    assert task.control is not None
    check_driver(task.control)
    place = place_of(TaskContext.get(), rank, task.control)
    task = replace(task, payload=Artifact(task.payload.name, task.payload.read()))
    owner = _executor() if fed else os.getpid()
    process = start_host(DetachedOrder(task, place, owner, fed and rank in task.template.feed_ranks))
    assert process.stdout is not None
    with process.stdout as output:
        has_joined = output.readline() == _JOINED
        if not (has_joined and fed):
            output.read()
            code = process.wait()
            if code:  # else the driver has been told how it ended
                raise RuntimeError(f"the supervisor of the node ended with code {code}; see its output above")


def _executor() -> int:
    """The JVM that this Python worker belongs to."""
    for parent in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            if parent.name() == "java":
                return parent.pid
    return os.getppid()


class _DetachedSupervisor(Supervisor):
    """A node that is no task: rows reach it through an endpoint of its own, results go straight to the driver.

    Parameters
    ----------
    order : DetachedOrder
        What it was started with.
    say : file
        Where to say that it has joined.
    """

    pings_faster = 5  # the driver's announcements come with its answers
    needs_driver = True

    def __init__(self, order: DetachedOrder, seat: GatherPlacement, say: IO[bytes]):
        assert order.task.control is not None
        super().__init__(order.task, seat, self._open_inlet if order.is_fed else Feeder)
        self._order = order
        self._control = order.task.control
        self._patience = order.task.lease or LEASE_SECONDS
        self._say = say
        self._receiver: RowReceiver | None = None
        self._endpoint: RowServer | None = None
        self._ending: dict[str, Any] = {}
        self._ending_since: float | None = None

    def _open_inlet(self, schema: FeedSchema, directories: SpoolDirectories, tell: Any) -> RowReceiver:
        self._receiver = RowReceiver(directories, tell)
        claims = DriverClaims(ControlClient(**self._control), self._patience)
        where = node_endpoint(self._order.place.host, self._order.task.node_ports)
        self._endpoint = RowServer(self._receiver, where, self._control["token"], claims)
        self._receiver.location = self._endpoint.location
        return self._receiver

    def until_end(self) -> Iterator[None]:
        """Goes on for as long as rows may come; there are none for the supervisor itself to write."""
        if self._receiver is not None:
            yield from self._receiver.until_end()

    def _hear(self, answer: dict[str, Any]) -> None:
        """Note, too, that the program shuts the cluster down: until then servers and evaluators stay."""
        super()._hear(answer)
        ending = answer.get("ending", {})  # a fit has no program that may still want them
        if ending is not None:
            self._ending, self._ending_since = ending, self._ending_since or time.monotonic()

    def _limit(self) -> Limit:
        if self._ending and not self._is_helper:
            return Limit(**self._ending)
        return super()._limit()

    def _dismissed_since(self) -> float | None:
        done, ending = super()._dismissed_since(), self._ending_since
        return None if done is None or ending is None else max(done, ending)

    def join(self) -> None:
        """Tell the task that started this process, too; once it has ended nobody listens any more."""
        super().join()
        with contextlib.suppress(BrokenPipeError):
            self._say.write(_JOINED)
            self._say.flush()

    def results(self) -> Iterator[pa.RecordBatch]:
        """Bring the results home, again and again until the driver has them; none are left."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._deliver(list(super().results()))
                return iter(())
            except NO_ANSWER:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)

    def _deliver(self, rows: list[pa.RecordBatch]) -> None:
        rank = self._order.place.rank
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"rank": rank}).encode())
        with connect(self._control["location"], self._control["token"]) as client:
            writer, reader = client.do_put(descriptor, rows[0].schema)
            with writer:
                for batch in (*rows, results.row(rank, results.END, b"")):
                    writer.write_batch(batch)
                writer.done_writing()
                while reader.read() is not None:  # until the driver has them
                    pass

    def stop(self) -> None:
        """Close the door first."""
        if self._endpoint is not None:
            self._endpoint.close()
        super().stop()


def lead(order: DetachedOrder, say: IO[bytes]) -> None:
    """Lead one node from start to end, and tell the driver how it failed."""
    assert order.task.control is not None
    patience = order.task.lease or LEASE_SECONDS
    seat = GatherPlacement(order.place, order.task.control, order.task.template.size, order.owner, patience)
    node = _DetachedSupervisor(order, seat, say)
    try:
        for _ in supervise(node, node.until_end()):
            pass
    except NodeFailure:
        pass  # the driver knows
    except Exception as error:
        node.report_failure(node.failure(errors.NodeLostError, f"the supervisor failed: {error!r}"))
        raise


def main() -> None:
    """Lead one node from start to end."""
    order: DetachedOrder = pickle.load(sys.stdin.buffer)  # noqa: S301  (a pipe from the process that started this one)
    sys.stdin.close()
    lead(order, sys.stdout.buffer)


if __name__ == "__main__":
    main()
