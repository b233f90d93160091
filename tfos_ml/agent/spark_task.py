"""The interface of a node to its Spark task, or to the task that started it.

A node is a task of a barrier job; or a task of a plain job, where Spark allows no barriers; or a process that outlives
its task, for clusters that get their rows from several jobs (``TFCluster``).
"""

from __future__ import annotations

import socket
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
from msgspec import structs

from tfos_ml import errors
from tfos_ml.agent.progress_link import period_for
from tfos_ml.agent.rendezvous import Rendezvous, leave_together
from tfos_ml.protocol.addresses import PORT, address_towards, is_loopback, is_own, unbracketed
from tfos_ml.protocol.control_client import CALL_TIMEOUT, ControlClient
from tfos_ml.protocol.control_messages import Enter, GatherRound, ReportFailure
from tfos_ml.protocol.failure import Failure, NodeFailure
from tfos_ml.protocol.shutdown_timeouts import LEASE_SECONDS

GATHER_POLL_SECONDS = 0.1
CLIENT_SECONDS = 3.0  # for a connection to a client of Spark Connect
DRIVER_SECONDS = 10.0  # for all tasks of a barrier stage to reach the driver; else Spark carries their exchanges
REPORT_SECONDS = 10.0


class BrokenExchangeError(Exception):
    """Spark's own exchange has ended, because the stage has, or another of its tasks: that has the cause."""


class SparkTask(Protocol):
    """What a node needs from its Spark task."""

    rank: int
    host: str  # address for other nodes
    cpus: int  # number of CPUs that it may use
    gpus: dict[str, str]  # environment variables that make its GPUs visible
    attempt: int  # how often Spark has tried the task before in the same attempt of its stage

    def is_first(self) -> bool:
        """Whether Spark starts this node for the first time. Always true in a barrier stage, which ends with a task."""
        return True

    def arrive(self) -> None:
        """Find out how this task will exchange messages with the others, before anything that takes long."""
        return

    def allGather(self, message: str = "") -> list[str]:
        """One message of each task, by rank; blocks until all have sent theirs."""
        ...

    def is_orphan(self) -> bool:
        """Whether the node's owner has died. False for Spark's own tasks, which Spark kills."""
        return False

    def report_failure(self, text: str) -> bool:
        """Report to the driver why the node fails; False if it cannot be called. ``ArrowException`` if it is silent."""
        ...

    def leave(self, rendezvous: Rendezvous) -> bool:
        """Leave a run that has failed; returns whether the task may now end without an error."""
        ...


class BarrierTask(SparkTask):
    """A task of a barrier stage, whose tasks Spark starts together.

    The driver carries their exchanges if all can reach it; else Spark does, which takes a second for each.
    """

    def __init__(self, context: Any, control: dict[str, str] | None, is_driver_behind_nat: bool = False):
        self._context = context
        self._control = control
        self.rank: int = context.partitionId()
        size = len(context.getTaskInfos())
        self._exchange = DriverExchange(control, self.rank, size, LEASE_SECONDS) if control and size > 1 else None
        self._has_arrived = False
        self.host = _host_of(context.getTaskInfos()[self.rank].address, control, is_driver_behind_nat)
        self.cpus: int = context.cpus()
        self.gpus = visible_gpus(context)
        self.attempt: int = context.attemptNumber()

    def arrive(self) -> None:
        """See :class:`SparkTask`."""
        if not self._has_arrived and self._exchange is not None and not self._exchange.arrives(DRIVER_SECONDS):
            self._exchange = None
        self._has_arrived = True

    def allGather(self, message: str = "") -> list[str]:
        """See :class:`SparkTask`."""
        if len(self._context.getTaskInfos()) == 1:  # Spark's allGather would take a second
            return [message]
        self.arrive()
        if self._exchange is not None:
            gathered = self._exchange.gather(message, DRIVER_SECONDS)
            if gathered is not None:
                return gathered
            self._exchange = None
        try:
            messages: list[str] = self._context.allGather(message)
        except Exception as error:
            raise BrokenExchangeError(f"Spark's allGather: {error}") from error
        return messages

    def report_failure(self, text: str) -> bool:
        """See :class:`SparkTask`."""
        if self._control is None:
            return False
        with closing(ControlClient(**self._control)) as client:
            client.call_reliably(ReportFailure(self.rank, text), REPORT_SECONDS)
        return True

    def leave(self, rendezvous: Rendezvous) -> bool:
        """See :class:`SparkTask`."""
        size = len(self._context.getTaskInfos())
        return self._control is not None and leave_together(rendezvous, self._control, self.rank, size)


@dataclass(frozen=True)
class TaskInfo:
    """What a plain task knows about itself; most fields are those of :class:`SparkTask`."""

    rank: int
    host: str
    cpus: int
    gpus: dict[str, str]
    task: int = 0  # Spark's id of the task attempt, unique in the application
    attempt: int = 0


def check_driver(control: dict[str, str]) -> None:
    """Raise ``NodeFailure``, which names the settings, unless this host reaches the driver's control server."""
    target = urlsplit(control["location"])
    try:
        socket.create_connection((target.hostname, target.port or 0), CALL_TIMEOUT).close()
    except OSError as error:
        message = (
            f"{socket.gethostname()} cannot reach the driver at spark.driver.host={target.hostname}, on the port of "
            f"{PORT} ({target.port} now): {error}. Nodes need that connection. If a firewall, NAT or container is "
            f"between them, set {PORT} to a port that it lets through, spark.port.maxRetries to how many more, and "
            "spark.driver.host to an address of the driver that executors reach."
        )
        raise NodeFailure(Failure(errors.ClusterConfigError, message)) from None


def reaches_driver(control: dict[str, str], rank: int, size: int) -> bool:
    """Whether this host reaches the control server of a client of Spark Connect, which may be behind NAT."""
    target = urlsplit(control["location"])
    try:
        socket.create_connection((target.hostname, target.port or 0), CLIENT_SECONDS).close()
    except OSError:
        return False
    at_driver = DriverExchange(control, rank, size, DRIVER_SECONDS)
    try:
        return at_driver.is_known()
    finally:
        at_driver.client.close()


def task_info_of(context: Any, rank: int, control: dict[str, str]) -> TaskInfo:
    """What a plain task knows about itself. Its host is the address from which it reaches the control server."""
    host = address_towards(control["location"])
    gpus = visible_gpus(context)
    return TaskInfo(rank, host, context.cpus(), gpus, context.taskAttemptId(), context.attemptNumber())


class DriverExchange:
    """The exchanges of one node with the others over the driver's control server.

    If the driver does not answer, a call is retried for `patience` seconds.
    """

    def __init__(self, control: dict[str, str], rank: int, size: int, patience: float):
        self.client = ControlClient(**control)
        self._rank = rank
        self._size = size
        self._patience = patience
        self._round = 0
        self._has_left = False

    def is_known(self) -> bool:
        """Whether the driver of this run answers, rather than another server."""
        try:
            self.client.call(Enter(self._rank, 0))
        except pa.ArrowException:
            return False
        return True

    def arrives(self, all_within: float) -> bool:
        """Whether this node reaches the driver, which expects all nodes within `all_within` seconds from the first one.

        The driver records that only once this node knows that it can be reached; else the driver sends the others to
        Spark's exchanges, too.
        """
        asks = GatherRound(self._rank, 0, self._size, patience=all_within)
        try:
            if self.client.call(asks).by_spark:
                return False
        except pa.ArrowException:
            return False
        return not self.client.call_reliably(structs.replace(asks, arrives=True), self._patience).by_spark

    def gather(self, message: str, all_within: float | None = None) -> list[str] | None:
        """One message of each node, by rank; None if Spark must carry this and all later exchanges.

        The first exchange decides that, if `all_within` is given: all nodes must join within so many seconds.
        """
        number, self._round = self._round, self._round + 1
        mine = GatherRound(self._rank, number, self._size, patience=all_within)
        answer = self.client.call_reliably(structs.replace(mine, message=message), self._patience)
        longest = max(GATHER_POLL_SECONDS, period_for(self._size) / 5)
        pause = longest / 8  # nodes of a small run are seldom far apart
        while answer.messages is None and not answer.by_spark:
            if self._has_left:
                raise errors.ClusterClosedError("the node has left the run")
            time.sleep(pause)
            pause = min(2 * pause, longest)
            answer = self.client.call_reliably(mine, self._patience)
        return answer.messages

    def leave(self) -> None:
        """End the exchanges that are under way."""
        self._has_left = True


class PlainTask(SparkTask):
    """A task, or a process, that meets the other nodes over the driver's control server.

    It is an orphan when the process `owner` has ended. If the driver does not answer, a call is retried for `patience`
    seconds.
    """

    def __init__(
        self,
        info: TaskInfo,
        control: dict[str, str],
        size: int,
        owner: int | None = None,
        patience: float = LEASE_SECONDS,
    ):
        self._exchange = DriverExchange(control, info.rank, size, patience)
        self._client = self._exchange.client
        self._patience = patience
        self._owner = psutil.Process(owner) if owner is not None else None
        self._task = info.task
        self.rank, self.host, self.cpus, self.gpus = info.rank, info.host, info.cpus, info.gpus
        self.attempt = info.attempt

    def is_first(self) -> bool:
        """See :class:`SparkTask`. Only the driver knows, since Spark renumbers tasks in each attempt of a stage."""
        return self._client.call_reliably(Enter(self.rank, self._task), self._patience).first

    def allGather(self, message: str = "") -> list[str]:
        """See :class:`SparkTask`."""
        messages = self._exchange.gather(message)
        assert messages is not None  # Spark carries no exchanges of plain tasks
        return messages

    def is_orphan(self) -> bool:
        """See :class:`SparkTask`."""
        return self._owner is not None and not self._owner.is_running()

    def report_failure(self, text: str) -> bool:
        """See :class:`SparkTask`. If the task failed instead, Spark would repeat it."""
        self._client.call_reliably(ReportFailure(self.rank, text), REPORT_SECONDS)
        return True

    def leave(self, rendezvous: Rendezvous) -> bool:
        """See :class:`SparkTask`."""
        self._exchange.leave()
        return True


def _host_of(address: str, control: dict[str, str] | None, is_driver_behind_nat: bool) -> str:
    """Address of a barrier task's host; loopback if the driver listens only there, as in a local session.

    Spark gives the address from which the executor's connection comes to the driver: that of the gateway, if it
    hands connections on to the driver.
    """
    host = unbracketed(address.rsplit(":", 1)[0])
    if control is None or is_loopback(host):
        return host
    try:
        towards = address_towards(control["location"])
    except OSError:  # nodes of a barrier job do not need to reach the driver
        return host
    is_gateways = is_driver_behind_nat and not is_own(host)
    return towards if is_loopback(towards) or is_gateways else host


def visible_gpus(context: Any) -> dict[str, str]:
    """The environment variable that makes the task's GPUs, and no others, visible to TensorFlow."""
    gpus = context.resources().get("gpu")
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)} if gpus else {}
