"""The Spark task that is a node: of a barrier job, or of a plain one where Spark allows no barriers."""

from __future__ import annotations

import socket
import time
from typing import Any, Protocol
from urllib.parse import urlsplit

from tfos_ml.cluster.control import ControlClient, period_for
from tfos_ml.cluster.resources import visible_gpus

GATHER_POLL_SECONDS = 0.1


class NodeSeat(Protocol):
    """What a node needs of its task.

    Attributes
    ----------
    rank : int
        The node's number.
    host : str
        Where other nodes reach it.
    cpus : int
        CPUs it may use.
    gpus : dict of str to str
        Environment variables that show it its GPUs.
    is_retry : bool
        Whether Spark has begun this task before.
    """

    rank: int
    host: str
    cpus: int
    gpus: dict[str, str]
    is_retry: bool

    def allGather(self, message: str = "") -> list[str]:
        """One message of each task, by rank; blocks until all have sent theirs."""
        ...


class BarrierSeat:
    """A task of a barrier stage: Spark starts all together and carries their exchanges."""

    def __init__(self, context: Any):
        self._context = context
        self.rank: int = context.partitionId()
        self.host: str = context.getTaskInfos()[self.rank].address.rsplit(":", 1)[0]
        self.cpus: int = context.cpus()
        self.gpus = visible_gpus(context)
        self.is_retry = False  # a barrier stage ends with its first failed task

    def allGather(self, message: str = "") -> list[str]:
        """See :class:`NodeSeat`."""
        messages: list[str] = self._context.allGather(message)
        return messages


class PlainSeat:
    """A task of a plain job: the nodes meet at the driver's control server.

    Parameters
    ----------
    context : pyspark.TaskContext
        Spark's.
    control : dict of str to str
        Address and token of the control server.
    size : int
        Number of nodes.
    """

    def __init__(self, context: Any, control: dict[str, str], size: int):
        self._client = ControlClient(**control)
        self._size = size
        self._round = 0
        self.rank: int = context.partitionId()
        self.host = _address_towards(control["location"])
        self.cpus: int = context.cpus()
        self.gpus = visible_gpus(context)
        self.is_retry = context.attemptNumber() > 0

    def allGather(self, message: str = "") -> list[str]:
        """See :class:`NodeSeat`."""
        number, self._round = self._round, self._round + 1
        answer = self._client.call("gather", rank=self.rank, round=number, size=self._size, message=message)
        while answer["messages"] is None:
            time.sleep(max(GATHER_POLL_SECONDS, period_for(self._size) / 5))
            answer = self._client.call("gather", rank=self.rank, round=number, size=self._size)
        messages: list[str] = answer["messages"]
        return messages

    def report_failure(self, text: str) -> None:
        """Tell the driver why this node fails: Spark would try a plain task again."""
        self._client.call("failed", rank=self.rank, error=text)


def _address_towards(location: str) -> str:
    """Address of this host in the network through which it reaches `location`."""
    target = urlsplit(location)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target.hostname, target.port))  # of a datagram socket: sends nothing
        host: str = probe.getsockname()[0]
        return host
