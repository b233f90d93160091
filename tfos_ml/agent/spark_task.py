"""The interface of a node to its Spark task, or to the task that started it.

A node is a task of a barrier job; or a task of a plain job, where Spark allows no barriers; or a process that outlives
its task, for clusters that get their rows from several jobs (``TFCluster``).

Before a node starts anything, its run is *connected* or *apart*, for all nodes and to the end. Connected: all reach the
driver's control server, which carries everything between them. Apart, which only a barrier job can be: some node does
not reach it (a client of Spark Connect behind NAT, a firewall). Then Spark carries the exchanges of the nodes, and the
driver learns only what the job returns or raises.
"""

from __future__ import annotations

import socket
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
from msgspec import structs

from tfos_ml import errors
from tfos_ml.agent.progress_link import period_for
from tfos_ml.common.session_settings import PORT
from tfos_ml.common.timeouts import (
    CALL_TIMEOUT,
    CONNECT_SECONDS,
    FIRST_ANSWER_SECONDS,
    GATHER_POLL_SECONDS,
    LEASE_SECONDS,
    REPORT_SECONDS,
)
from tfos_ml.protocol.addresses import ControlAddress, address_towards, unbracketed
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import Arrive, Enter, GatherRound, ReportFailure
from tfos_ml.protocol.failure import Failure, NodeFailure


class BrokenExchangeError(Exception):
    """Spark's own exchange has ended, because the stage has, or another of its tasks: that has the cause."""


@dataclass(frozen=True)
class TaskInfo:
    """What a task knows about itself."""

    rank: int
    host: str  # address for other nodes
    cpus: int  # that the node may use
    gpus: dict[str, str]  # environment variables that make its GPUs visible
    task: int = 0  # Spark's id of the task attempt, unique in the application
    attempt: int = 0  # how often Spark has tried the task before in the same attempt of its stage


def task_info_of(context: Any, rank: int, control: ControlAddress) -> TaskInfo:
    """What a task knows about itself. Its host is the address from which it reaches the control server."""
    return _task_info(context, rank, address_towards(control.location))


def _task_info(context: Any, rank: int, host: str) -> TaskInfo:
    gpus = context.resources().get("gpu")
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)} if gpus else {}  # and no others
    return TaskInfo(rank, host, context.cpus(), visible, context.taskAttemptId(), context.attemptNumber())


class SparkTask:
    """What a node needs from its Spark task."""

    def __init__(self, info: TaskInfo):
        self.info = info

    def is_first(self) -> bool:
        """Whether Spark starts this node for the first time. Always true in a barrier stage, which ends with a task."""
        return True

    def allGather(self, message: str = "") -> list[str]:
        """One message of each task, by rank; blocks until all have sent theirs."""
        raise NotImplementedError

    def is_orphan(self) -> bool:
        """Whether the node's owner has died. False for Spark's own tasks, which Spark kills."""
        return False

    def report_failure(self, text: str) -> bool:
        """Report to the driver why the node fails; False if it cannot be called. ``ArrowException`` if it is silent."""
        return False

    def close(self) -> None:
        """End an exchange that is under way."""


class ApartTask(SparkTask):
    """A task of a barrier stage that runs apart. Each of Spark's exchanges takes about a second."""

    def __init__(self, context: Any):
        self._context, rank = context, context.partitionId()
        self._size = len(context.getTaskInfos())
        host = unbracketed(context.getTaskInfos()[rank].address.rsplit(":", 1)[0])
        super().__init__(_task_info(context, rank, host))

    def allGather(self, message: str = "") -> list[str]:
        if self._size == 1:
            return [message]
        try:
            messages: list[str] = self._context.allGather(message)
        except Exception as error:
            raise BrokenExchangeError(f"Spark's allGather: {error}") from error
        return messages


class ConnectedTask(SparkTask):
    """A task, or a process, that meets the other nodes over the driver's control server.

    It is an orphan when the process `owner` has ended. If the driver does not answer, a call is retried for `patience`
    seconds.
    """

    def __init__(
        self,
        info: TaskInfo,
        control: ControlAddress,
        size: int,
        owner: int | None = None,
        patience: float = LEASE_SECONDS,
    ):
        super().__init__(info)
        self._client = ControlClient(control)
        self._size, self._patience = size, patience
        self._owner = psutil.Process(owner) if owner is not None else None
        self._round, self._is_closed = 0, False
        self._is_in_exchange = False

    def allGather(self, message: str = "") -> list[str]:
        self._is_in_exchange = True
        try:
            return self._gather(message)
        finally:
            self._is_in_exchange = False
            if self._is_closed:
                self._client.close()

    def _gather(self, message: str) -> list[str]:
        number, self._round = self._round, self._round + 1
        request = GatherRound(self.info.rank, number, self._size)
        messages = self._client.call_reliably(structs.replace(request, message=message), self._patience)
        longest = max(GATHER_POLL_SECONDS, period_for(self._size) / 5)
        pause = longest / 8  # nodes of a small run are seldom far apart
        while messages is None:
            if self._is_closed:
                raise errors.ClusterClosedError("the node has left the run")
            time.sleep(pause)
            pause = min(2 * pause, longest)
            messages = self._client.call_reliably(request, self._patience)
        return messages

    def is_orphan(self) -> bool:
        return self._owner is not None and not self._owner.is_running()

    def report_failure(self, text: str) -> bool:
        """See :class:`SparkTask`. If the task failed instead, Spark would repeat it."""
        self._client.call_reliably(ReportFailure(self.info.rank, text), REPORT_SECONDS)
        return True

    def close(self) -> None:
        self._is_closed = True
        if not self._is_in_exchange:  # which a thread of its own carries
            self._client.close()


class PlainTask(ConnectedTask):
    """A connected task that Spark may start a second time."""

    def is_first(self) -> bool:
        """See :class:`SparkTask`. Only the driver knows, since Spark renumbers tasks in each attempt of a stage."""
        return self._client.call_reliably(Enter(self.info.rank, self.info.task), self._patience)


def check_driver(control: ControlAddress) -> None:
    """Raise ``NodeFailure``, which names the settings, unless this host reaches the driver's control server."""
    target = urlsplit(control.location)
    try:
        _connect(control, CALL_TIMEOUT)
    except OSError as error:
        message = (
            f"{socket.gethostname()} cannot reach the driver at spark.driver.host={target.hostname}, on the port of "
            f"{PORT} ({target.port} now): {error}. Nodes need that connection. If a firewall, NAT or container is "
            f"between them, set {PORT} to a port that it lets through, spark.port.maxRetries to how many more, and "
            "spark.driver.host to an address of the driver that executors reach."
        )
        raise NodeFailure(Failure(errors.ClusterConfigError, message)) from None


def all_reach_driver(control: ControlAddress, rank: int, size: int) -> bool:
    """Whether all tasks of a barrier stage reach the driver's control server: the driver decides, once for all."""
    try:
        _connect(control, CONNECT_SECONDS)
        with closing(ControlClient(control)) as client:
            while (decision := client.call_reliably(Arrive(rank, size), FIRST_ANSWER_SECONDS)) is None:
                time.sleep(GATHER_POLL_SECONDS)
    except (OSError, pa.ArrowException):
        return False
    return decision


def _connect(control: ControlAddress, timeout: float) -> None:
    target = urlsplit(control.location)
    socket.create_connection((target.hostname, target.port or 0), timeout).close()
