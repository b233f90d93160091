"""Connections: from a task to the driver's port, and from the driver back to a port of the task's host."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tfos_ml.common.sessions import is_connect
from tfos_ml.errors import ClusterConfigError
from tfos_ml.protocol.addresses import (
    NODE_PORTS,
    PORT,
    address_towards,
    client_endpoint,
    described_ports,
    driver_endpoint,
    node_endpoint,
)
from tfos_ml.protocol.codec import Struct
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import Request
from tfos_ml.protocol.transport import Service, TransportServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACK_SECONDS = 3.0


class CalledBack(Struct, frozen=True):
    """Why the driver could not connect; empty if it could."""

    problem: str


class CallBack(Request[CalledBack], frozen=True):
    """Connect to a port of the caller's host."""

    host: str
    port: int


@dataclass(frozen=True)
class Connections:
    """Of one task; a problem is empty if there is none."""

    to_driver: str
    to_node: str
    listening: str


@contextlib.contextmanager
def driver_server(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Listen where a run would, and yield the arguments of :func:`try_connections`.

    Raises ``ClusterConfigError`` if no port can be listened on.
    """
    endpoint = client_endpoint(spark) if is_connect(spark) else driver_endpoint(spark)
    token = secrets.token_urlsafe(32)
    server = TransportServer(endpoint, token, Service(actions={CallBack: _call_back}))
    try:
        yield {"location": server.location, "token": token}
    finally:
        server.close()


def _call_back(call: CallBack) -> CalledBack:
    try:
        socket.create_connection((call.host, call.port), BACK_SECONDS).close()
    except OSError as error:
        return CalledBack(f"the driver does not reach {call.host}:{call.port}: {error}")
    return CalledBack("")


def try_connections(control: dict[str, str], ports: range) -> Connections:
    """From a task to the driver and back, over the first port that is free of those of nodes."""
    here = socket.gethostname()
    try:
        server = TransportServer(node_endpoint(address_towards(control["location"]), ports), secrets.token_urlsafe(32))
    except (OSError, ClusterConfigError) as error:
        return Connections("", "", f"{here}: {described_ports(ports)}: {error}")
    try:
        with closing(ControlClient(**control)) as client:
            back = client.call(CallBack(server.host, server.port))
    except pa.ArrowException as error:
        return Connections(f"{here} does not reach {control['location']}: {error}", "", "")
    finally:
        server.close()
    return Connections("", back.problem, "")


ADVICE_TO_DRIVER = (
    f"If a firewall, NAT or container is between them, set {PORT} to a port that it lets through, "
    "spark.port.maxRetries to how many more, and spark.driver.host to an address of the driver that executors reach."
)
ADVICE_TO_CLIENT = (
    "Fits work, but tell metrics and progress late. Set spark.tfos_ml.clientHost to an address of this client that "
    f"executors reach, and {PORT} to a port that is let through."
)
ADVICE_TO_NODE = f"Only driverPSNodes and a look at TensorBoard need that. Let the ports of {NODE_PORTS} through."
ADVICE_LISTENING = f"Set {NODE_PORTS} to a range of free ports, as 40000-40099: one or two for each node on a host."
