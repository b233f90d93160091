"""Exchanges messages between nodes, and lets a failed node leave without blocking the others.

In an exchange, every node sends a message and gets the messages of all. It blocks until *every* node has joined it, so
it runs in a thread while the supervisor continues to watch its process. The node's :mod:`tfos_ml.agent.spark_task`
carries the exchange: over the driver's control server, or over Spark's ``allGather``, which takes about a second.

Spark prints the error of a task several times, with Java stack traces, and a line for each task that it kills.
Therefore, once the driver has acknowledged a failure, the task of the failed node ends without an error and without
result rows, and so do the other tasks when the driver asks them to stop. The driver raises the reported failure,
whatever the job does. But a task of a barrier stage must not leave others waiting in an exchange over Spark, which
would never complete. So the tasks first tell each other, over the driver's control server, how many exchanges each has
begun; those that have begun one less take part in the last one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.metadata
import logging
import platform
import socket
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import closing
from typing import Protocol

import pyarrow as pa

from tfos_ml.common.version import __version__
from tfos_ml.errors import ClusterConfigError, VersionMismatchError
from tfos_ml.protocol.addresses import ANY_PORT, NODE_PORTS, bracketed, described_ports
from tfos_ml.protocol.codec import Struct, decode_text
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import GatherRound

logger = logging.getLogger(__name__)
LEAVE_SECONDS = 20.0  # by then the driver has canceled the job, unless it cannot be reached
POLL_SECONDS = 0.1
_LEAVING = -1  # number of the extra exchange at the control server in which the tasks leave


class BarrierContext(Protocol):
    """The part of ``pyspark.BarrierTaskContext`` that is used here."""

    def allGather(self, message: str = "") -> list[str]:
        """Gather one message of each task."""
        ...


class ReservedPort:
    """A TCP port held until just before TensorFlow binds it: its server does not set ``SO_REUSEPORT``."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.number = 0

    def reserve(self, ports: range = ANY_PORT, setting: str = NODE_PORTS) -> None:
        """Bind the first port that is free on all addresses of this host, as TensorFlow needs it.

        If none is free, raises ``ClusterConfigError``, which names the `setting` that has the ports.
        """
        is_dual = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET, socket.SOCK_STREAM)
        if is_dual:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for port in ports:
            with contextlib.suppress(OSError):
                self._socket.bind(("", port))
                self.number = self._socket.getsockname()[1]
                return
        raise ClusterConfigError(
            f"{described_ports(ports, setting)}: none of these {len(ports)} ports is free on {socket.gethostname()}. "
            "Give more: one for each node on a host, two if TFCluster feeds it, and some to spare, since a port may "
            "stay in use for a minute after its last connection."
        )

    def release(self) -> None:
        """Free the port; may be called again."""
        if self._socket is not None:
            self._socket.close()


class NodeInfo(Struct, frozen=True):
    """What a node tells the others about itself when they meet."""

    rank: int
    label: str
    host: str
    port: int
    versions: dict[str, str]
    pid: int
    feed: str | None = None  # where feed tasks connect, if the node is fed

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{bracketed(self.host)}:{self.port}"


def local_versions() -> dict[str, str]:
    """Versions of Python and of the packages that must be the same on all nodes; read without importing them."""
    path = [p for p in sys.path if not p.endswith(".zip")]  # Spark's archives, which take half a second to search
    distribution = next(iter(importlib.metadata.distributions(name="tensorflow", path=path)), None)
    tensorflow = "unknown" if distribution is None else distribution.version  # on the path, but not installed
    return {"python": platform.python_version(), "tensorflow": tensorflow, "tfos_ml": __version__}


class Rendezvous:
    """Holds exchanges of texts between all nodes, one after the other."""

    def __init__(self, context: BarrierContext):
        self._context = context
        self._last: Future[list[str]] | None = None
        self.begun = 0  # number of exchanges, including the current one

    def exchange(self, message: str) -> Future[list[str]]:
        """Send a message to all nodes; the future has the messages of all, by rank."""
        future: Future[list[str]] = Future()
        self._last = future
        self.begun += 1
        thread = threading.Thread(target=self._gather, args=(message, future), name="rendezvous", daemon=True)
        thread.start()
        return future

    def _gather(self, message: str, future: Future[list[str]]) -> None:
        try:
            future.set_result(self._context.allGather(message))
        except BaseException as error:  # raised where the future is waited for
            future.set_exception(error)

    def complete(self, begun: int, timeout: float) -> bool:
        """Take part in exchanges up to number `begun`; returns whether all have ended within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.begun < begun or self._last is not None:
            if self._last is None:
                self.exchange("")
                assert self._last is not None
            done, _ = concurrent.futures.wait([self._last], max(0.0, deadline - time.monotonic()))
            if not done:
                return False
            self._last = None
        return True


def read_infos(messages: list[str]) -> list[NodeInfo]:
    """Decode the nodes' infos, by rank; raises ``VersionMismatchError``, which names the packages that differ."""
    infos = sorted((decode_text(NodeInfo, message) for message in messages), key=lambda info: info.rank)
    for package in infos[0].versions:
        by_node = {f"{c.label} on {c.host}": c.versions.get(package) for c in infos}
        if len(set(by_node.values())) > 1:
            raise VersionMismatchError(
                f"The nodes run different versions of {package}: {by_node}. Install the same one on every host."
            )
    return infos


def leave_together(rendezvous: Rendezvous, control: dict[str, str], rank: int, size: int) -> bool:
    """End the exchanges of a barrier task; returns whether no task is left waiting in one."""
    if size == 1:
        return True
    deadline = time.monotonic() + LEAVE_SECONDS
    mine = GatherRound(rank, _LEAVING, size, str(rendezvous.begun))
    try:
        with closing(ControlClient(**control)) as client:
            while (begun := client.call_reliably(mine, LEAVE_SECONDS).messages) is None:
                if time.monotonic() > deadline:
                    return False
                time.sleep(POLL_SECONDS)
    except pa.ArrowException as error:
        logger.debug("The driver cannot be reached: %s", error)
        return False
    return rendezvous.complete(max(map(int, begun)), deadline - time.monotonic())
