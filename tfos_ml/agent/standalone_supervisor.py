"""``python -m tfos_ml.agent.standalone_supervisor``: a node's supervisor that outlives the task that started it.

A node that gets its rows from several jobs cannot be a task of one of them. So a task starts this process in a session
of its own, if possible as a fork of the executor's fork server, and sends it what it needs through a socket pair. The
process ends when its *owner* (the executor's JVM, the task, or the driver) dies, when the driver's host refuses
connections, or when the driver has not answered for the lease (``spark.tfos_ml.leaseTimeout``).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import IO

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.agent.child_process import child_environment
from tfos_ml.agent.executor import executor, read_at_start_only
from tfos_ml.agent.feeder import Feeder, RowSource, Send
from tfos_ml.agent.fork_client import ForkServerRef, Process, start_process
from tfos_ml.agent.node_result import deliver
from tfos_ml.agent.node_run import StandaloneMode
from tfos_ml.agent.row_receiver import RowReceiver
from tfos_ml.agent.row_server import GrantClient, RowServer
from tfos_ml.agent.spark_task import PlainTask, TaskInfo, check_driver, task_info_of
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.common.timeouts import LEASE_SECONDS, SUPERVISOR_EXIT_SECONDS
from tfos_ml.data.spool import SpoolDirectories
from tfos_ml.protocol.addresses import node_endpoint
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.failure import Failure, NodeFailure
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.worker.fork_server import NO_MARKER

MODULE = "tfos_ml.agent.standalone_supervisor"
NAME = "tfos supervisor"
STDERR = 2
_JOINED = b"joined\n"


@dataclass(frozen=True)
class StandaloneNode:
    """A node that outlives the task that starts it, as the task describes it to the process."""

    task: NodeTask = field(repr=False)
    info: TaskInfo
    owner: int  # the node ends with this process
    is_fed: bool  # whether feed tasks send it rows


class SupervisorProcess:
    """The supervisor's process, which says over `channel` that its node has joined; the channel closes with it."""

    def __init__(self, process: Process, channel: socket.socket):
        self._process = process
        self._channel = channel

    def has_joined(self) -> bool:
        """Wait until its node has joined the others (True) or has ended before that (False)."""
        said = b""
        while said != _JOINED and (more := self._receive(len(_JOINED) - len(said))):
            said += more
        return said == _JOINED

    def _receive(self, size: int) -> bytes:
        with contextlib.suppress(ConnectionResetError):  # it ended before it had read its node
            return self._channel.recv(size)
        return b""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; by default, waits until the supervisor has ended, else raises ``TimeoutExpired``."""
        if timeout is None:
            while self._receive(len(_JOINED)):
                pass
        return self._process.wait(SUPERVISOR_EXIT_SECONDS if timeout is None else timeout)

    def kill(self) -> None:
        """End it; its reaper cleans up."""
        self._process.kill()

    def close(self) -> None:
        """Stop listening to it; the process continues."""
        self._channel.close()


def start_supervisor(node: StandaloneNode) -> SupervisorProcess:
    """Start the supervisor of a node in a process of its own; its task names the owner of the fork server."""
    task = node.task
    assert task.fork_owner is not None
    channel, theirs = socket.socketpair()
    environment = child_environment(NO_MARKER, node.info.cpus, read_at_start_only(task.environment))
    fork_server = ForkServerRef(task.fork_owner, task.idle_seconds)
    with theirs:
        process = start_process(
            MODULE, (), environment, theirs.fileno(), STDERR, fork_server, NAME, outlives_requester=True
        )
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.sendall(pickle.dumps(node))
        channel.shutdown(socket.SHUT_WR)
    return SupervisorProcess(process, channel)


def start_node(task: NodeTask, fed: bool, rank: int) -> None:
    """In a Spark task: start a node. If feed tasks feed it, return once it has joined, else when it has ended."""
    from pyspark import TaskContext

    assert task.control is not None
    check_driver(task.control)
    info = task_info_of(TaskContext.get(), rank, task.control)
    jvm = executor()
    payload = Artifact(task.payload.name, task.payload.read())
    task = replace(task, payload=payload, fork_owner=task.fork_owner or jvm)
    owner = jvm if fed else os.getpid()
    process = start_supervisor(StandaloneNode(task, info, owner, fed and rank in task.template.feed_ranks))
    try:
        if not (process.has_joined() and fed):
            code = process.wait()
            if code:  # else the driver has the outcome
                lost, role = f"the supervisor of the node ended with code {code}", task.template.nodes[rank]
                raise NodeFailure(Failure(errors.NodeLostError, lost, role.job_name, role.task_index, info.host))
    finally:
        process.close()


def lead(node: StandaloneNode, output: IO[bytes]) -> None:
    """Run one node from start to end; `output` gets a line once it has joined. The driver gets any failure."""
    task, control = node.task, node.task.control
    assert control is not None
    patience = task.lease or LEASE_SECONDS
    spark_task = PlainTask(node.info, control, task.template.size, node.owner, patience)

    def serve(receiver: RowReceiver) -> RowServer:
        grants = GrantClient(ControlClient(control), patience)
        return RowServer(receiver, node_endpoint(node.info.host, task.node_ports), control.token, grants)

    def make_source(task: NodeTask, directories: SpoolDirectories, send: Send) -> RowSource:
        return RowReceiver(directories, send, serve) if node.is_fed else Feeder(task, directories, send)

    def joined() -> None:
        with contextlib.suppress(BrokenPipeError):  # the task may have ended
            output.write(_JOINED)
            output.flush()

    def deliver_rows(rows: list[pa.RecordBatch]) -> None:
        deliver(lambda: rows, node.info.rank, control, patience)

    supervisor = Supervisor(task, spark_task, StandaloneMode(make_source, joined, deliver_rows))
    with contextlib.suppress(NodeFailure):  # the driver has it, or notices that the node is silent
        for _ in supervise(supervisor, ()):
            pass


def main(arguments: Sequence[str]) -> None:
    """Run one node, which arrives as a pickle on standard input, from start to end."""
    with socket.socket(fileno=os.dup(0)) as channel:
        with channel.makefile("rb") as stream, open(os.devnull, "rb") as nothing:
            node: StandaloneNode = pickle.load(stream)  # noqa: S301  (of a socket pair with who started this process)
            os.dup2(nothing.fileno(), 0)
        with channel.makefile("wb") as output:
            lead(node, output)


if __name__ == "__main__":
    main(sys.argv[1:])
