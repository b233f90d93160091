"""``python -m tfos_ml.agent.detached``: a node's supervisor that outlives the task that started it.

Feeding jobs come and go, so the node cannot be their task. A task starts this process, in a
session of its own, and hands it what it needs through a pipe. It ends by itself when its
*owner* (the executor's JVM, the task, or the driver) dies, when the driver's host refuses
connections, or when the driver has not answered for the lease (``spark.tfos_ml.leaseTimeout``).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import IO

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.agent.feeder import Feeder
from tfos_ml.agent.forkserver import executor
from tfos_ml.agent.node_run import Detachment
from tfos_ml.agent.placement import GatherPlacement, TaskInfo, check_driver, task_info_of
from tfos_ml.agent.process import child_environment
from tfos_ml.agent.row_receiver import RowReceiver
from tfos_ml.agent.row_server import RowServer
from tfos_ml.agent.row_source import RowSource, Send
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.common.interpreter import module_command
from tfos_ml.data.spool import SpoolDirectories
from tfos_ml.protocol import results
from tfos_ml.protocol.addresses import node_endpoint
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.claims import DriverClaims
from tfos_ml.protocol.control_client import NO_ANSWER, RETRY_SECONDS, ControlClient
from tfos_ml.protocol.control_messages import SendResults
from tfos_ml.protocol.failure import NodeFailure
from tfos_ml.protocol.graces import LEASE_SECONDS
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.transport import command, connect
from tfos_ml.worker.forkserver import MARKER

_JOINED = b"joined\n"


@dataclass(frozen=True)
class DetachedNode:
    """A node that outlives the task that starts it, as the task hands it to the process."""

    task: NodeTask = field(repr=False)
    info: TaskInfo
    owner: int  # process without which it ends
    is_fed: bool  # whether feed tasks send it rows


def start_detached(node: DetachedNode) -> subprocess.Popen[bytes]:
    """Start the process; its standard output has a line once its node has joined, and ends with it."""
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
        pickle.dump(node, process.stdin)
    return process


def start_node(task: NodeTask, fed: bool, rank: int) -> None:
    """In a Spark task: start a node; with rows from feed tasks return once it has joined, else when it has ended."""
    from pyspark import TaskContext

    assert task.control is not None
    check_driver(task.control)
    info = task_info_of(TaskContext.get(), rank, task.control)
    task = replace(task, payload=Artifact(task.payload.name, task.payload.read()))
    owner = executor() if fed else os.getpid()
    process = start_detached(DetachedNode(task, info, owner, fed and rank in task.template.feed_ranks))
    assert process.stdout is not None
    with process.stdout as output:
        has_joined = output.readline() == _JOINED
        if not (has_joined and fed):
            output.read()
            code = process.wait()
            if code:  # else the driver knows how it ended
                raise RuntimeError(f"the supervisor of the node ended with code {code}; see its output above")


def lead(node: DetachedNode, output: IO[bytes]) -> None:
    """Lead one node from start to end, and report to the driver how it failed.

    Parameters
    ----------
    node : DetachedNode
        The node.
    output : file
        Gets a line once it has joined the others.
    """
    task, control = node.task, node.task.control
    assert control is not None
    patience = task.lease or LEASE_SECONDS
    placement = GatherPlacement(node.info, control, task.template.size, node.owner, patience)

    def serve(receiver: RowReceiver) -> RowServer:
        claims = DriverClaims(ControlClient(**control), patience)
        return RowServer(receiver, node_endpoint(node.info.host, task.node_ports), control["token"], claims)

    def make_source(task: NodeTask, directories: SpoolDirectories, send: Send) -> RowSource:
        return RowReceiver(directories, send, serve) if node.is_fed else Feeder(task, directories, send)

    def joined() -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody reads it once the task has ended
            output.write(_JOINED)
            output.flush()

    def deliver(rows: list[pa.RecordBatch]) -> None:
        _deliver(rows, node.info.rank, control, patience)

    supervisor = Supervisor(task, placement, Detachment(make_source, joined, deliver))
    try:
        for _ in supervise(supervisor, ()):
            pass
    except NodeFailure:
        pass  # the driver knows
    except Exception as error:
        supervisor.report_failure(supervisor.failure(errors.NodeLostError, f"the supervisor failed: {error!r}"))
        raise


def _deliver(rows: list[pa.RecordBatch], rank: int, control: dict[str, str], patience: float) -> None:
    """Send result rows to the driver, again and again until it has them; raises ``ArrowException`` if it is gone."""
    deadline = time.monotonic() + patience
    while True:
        try:
            with connect(control["location"], control["token"]) as client:
                writer, reader = client.do_put(command(SendResults(rank)), rows[0].schema)
                with writer:
                    for batch in (*rows, results.row(rank, results.END, b"")):
                        writer.write_batch(batch)
                    writer.done_writing()
                    while reader.read() is not None:  # until the driver has them
                        pass
            return
        except NO_ANSWER:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)


def main() -> None:
    """Lead one node from start to end."""
    node: DetachedNode = pickle.load(sys.stdin.buffer)  # noqa: S301  (a pipe from the process that started this one)
    sys.stdin.close()
    lead(node, sys.stdout.buffer)


if __name__ == "__main__":
    main()
