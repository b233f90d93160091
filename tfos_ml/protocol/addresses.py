"""The addresses and ports of the driver and of nodes, from Spark's settings.

Settings
--------
spark.driver.bindAddress, spark.driver.host
    Where the driver listens, and where nodes reach it. A local session always listens on loopback.
spark.tfos_ml.clientHost
    Where nodes reach a client of Spark Connect, which then listens on all its addresses. By default it listens on the
    one through which it reaches the Connect server.
spark.tfos_ml.port, spark.port.maxRetries
    The first port that the driver tries, and how many more after it. 0, the default: any free port.
spark.tfos_ml.nodePorts
    Ports of the nodes on a host, ``"a-b"``: each node takes one for TensorFlow, and one more if ``TFCluster`` feeds it.
    A port may stay in use for a minute after its last connection.
spark.tfos_ml.tensorboardPort
    Port of the chief's TensorBoard. 0, the default: any free port.

If these are not set, ``tfos_ml.compat`` uses the environment variables of TensorFlowOnSpark: ``TFOS_SERVER_PORT``
(``"a"`` or ``"a-b"``) on the driver, ``TENSORFLOW_PORT`` and ``TENSORBOARD_PORT`` on the executors.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tfos_ml.common.session_settings import ANY_PORT, CLIENT_HOST, MAX_PORT, NODE_PORTS, PORT, Setting, number, ports
from tfos_ml.common.sessions import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER_VARIABLE, NODE_VARIABLE, TENSORBOARD_VARIABLE = "TFOS_SERVER_PORT", "TENSORFLOW_PORT", "TENSORBOARD_PORT"
_BIND, _HOST, _RETRIES = "spark.driver.bindAddress", "spark.driver.host", "spark.port.maxRetries"


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens."""

    host: str  # address at which others reach it
    listens_on: str = ""  # by default the same
    ports: Sequence[int] = ANY_PORT  # tried in this order; 0 is any
    origin: str = "the node's address"  # the settings that say so, for errors

    @property
    def bind(self) -> str:
        """Address that it listens on."""
        return self.listens_on or self.host

    def described(self) -> str:
        """The address and ports as text."""
        if list(self.ports) == [0]:
            return self.bind
        low, high = min(self.ports), max(self.ports)
        return f"{bracketed(self.bind)}:{low}" + (f"-{high}" if high > low else "")


@dataclass(frozen=True)
class ControlAddress:
    """Where members of a run reach the driver's control server, and the run's token."""

    location: str
    token: str = field(repr=False)


def driver_endpoint(spark: SparkSession, takes_variables: bool = False) -> Endpoint:
    """Where the driver of a classic session listens.

    With `takes_variables`, ``TFOS_SERVER_PORT`` replaces a missing setting. Raises ``ClusterConfigError`` if a setting
    is not a port number.
    """
    ports, origin = _driver_ports(spark)
    first = ports[0]
    if takes_variables and not first and (given := ports_of_variable(SERVER_VARIABLE)) is not None:
        ports, origin = given, f"{SERVER_VARIABLE}={os.environ[SERVER_VARIABLE]}"
    if is_local(spark):
        return Endpoint(loopback(), ports=ports, origin=origin)
    host = _conf(spark, _HOST) or "localhost"
    bind = _conf(spark, _BIND) or host
    named = f"{_BIND}={bind}" if _conf(spark, _BIND) else f"{_HOST}={host}"
    return Endpoint(unbracketed(host), unbracketed(bind), ports, f"{named}, {origin}")


def client_endpoint(spark: SparkSession) -> Endpoint:
    """Where a client of Spark Connect listens; nodes may or may not reach it there."""
    ports, origin = _driver_ports(spark)
    named = CLIENT_HOST.of(spark)
    if named:
        everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        return Endpoint(unbracketed(named), everywhere, ports, f"{CLIENT_HOST}={named}, {origin}")
    server = getattr(getattr(spark, "client", None), "host", None) or "localhost"
    try:
        host = address_towards(f"grpc://{bracketed(unbracketed(server))}:1")
    except OSError:  # it is reached through a proxy
        host = loopback()
    return Endpoint(host, ports=ports, origin=f"its address towards {server}, {origin}")


def _driver_ports(spark: SparkSession) -> tuple[range, str]:
    """Ports that the driver tries, and the settings that say so."""
    first, retries = PORT.of(spark), Setting(_RETRIES, 16, number).of(spark)
    ports = range(first, min(first + retries, MAX_PORT) + 1) if first else ANY_PORT
    return ports, f"{PORT}={first}, {_RETRIES}={retries}" if first else f"{PORT}={first}"


def ports_of_variable(name: str) -> range | None:
    """Ports in an environment variable of TensorFlowOnSpark; None if it is empty.

    Kubernetes sets variables of the same names for services, to ``tcp://`` and an address. They are ignored. Raises
    ``ClusterConfigError`` if the value is not a range of ports.
    """
    text = os.environ.get(name, "")
    return None if not text or "://" in text else ports(name, text)


def node_endpoint(host: str, ports: range) -> Endpoint:
    """Where a node receives rows. Takes the last free port, since TensorFlow takes the first."""
    return Endpoint(host, ports=ports[::-1], origin=described_ports(ports))


def described_ports(ports: range, name: str = NODE_PORTS.name) -> str:
    """The setting of the nodes' ports as the user wrote it."""
    return f"{name}={ports[0]}" + (f"-{ports[-1]}" if len(ports) > 1 else "")


def loopback() -> str:
    """The loopback address of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError:  # a host of IPv6 alone
            return "::1"
        return "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from its own host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bracketed(host: str) -> str:
    """A host as it stands before a port: addresses of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def unbracketed(host: str) -> str:
    """A host without the brackets that Spark puts around addresses of IPv6."""
    return host.removeprefix("[").removesuffix("]")


def address_towards(location: str) -> str:
    """Address of this host in the network through which it reaches `location`; ``OSError`` if it cannot reach it."""
    target = urlsplit(location)
    problem: OSError | None = None
    for family, socket_type, _, _, address in socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_DGRAM):
        with socket.socket(family, socket_type) as probe:
            try:
                probe.connect(address)  # of a datagram socket: sends nothing
            except OSError as error:
                problem = error
                continue
            host: str = probe.getsockname()[0]
            return host
    raise problem or OSError(f"{target.hostname} has no address")


def _conf(spark: SparkSession, name: str) -> str | None:
    value: str | None = spark.conf.get(name, None)
    return value
