"""Where servers listen, by Spark's settings, and what is said when they cannot."""

import socket
from types import SimpleNamespace

import pytest

from tfos_ml import errors
from tfos_ml.agent.feed_task import FeedNode, FeedSpec, feed_elements
from tfos_ml.agent.node_resources import ReservedPort
from tfos_ml.agent.spark_task import check_driver
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol import addresses, transport
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.failure import NodeFailure, find_failure

ONE = make_template(1)

CLUSTER = "spark://master:7077"


def session(master=CLUSTER, **settings):
    """As much of a Spark session as settings are."""
    values = {"spark.master": master, "spark.driver.host": "10.0.0.1", **settings}
    return SimpleNamespace(conf=values)


def endpoint(master=CLUSTER, **settings):
    named = {f"spark.{name.replace('__', '.')}": value for name, value in settings.items()}
    return addresses.driver_endpoint(session(master, **named))


def test_a_local_session_listens_where_no_other_host_reaches_it():
    for master in ("local", "local[2,3]"):
        found = endpoint(master, driver__bindAddress="0.0.0.0")
        assert (found.bind, found.host) == ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize(
    ("settings", "bind", "host"),
    [
        ({"driver__host": "driver.example", "driver__bindAddress": "10.0.0.7"}, "10.0.0.7", "driver.example"),
        ({"driver__host": "fd00::2", "driver__bindAddress": "[::]"}, "::", "fd00::2"),
    ],
)
def test_elsewhere_the_driver_listens_where_spark_does(settings, bind, host):
    found = endpoint(**settings)
    assert (found.bind, found.host) == (bind, host)


def test_ports_of_the_driver():
    assert endpoint().ports == range(1)
    assert endpoint(tfos_ml__port="65530").ports == range(65530, 65536)


# Listening


def free_ports(count):
    """First of so many consecutive ports that are free now."""
    for first in range(20000, 30000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def test_the_driver_takes_the_next_port_while_one_is_taken_and_says_when_there_is_none():
    first = free_ports(2)
    found = endpoint("local[2]", tfos_ml__port=str(first), port__maxRetries="1")
    servers = [ControlServer(found, ONE) for _ in range(2)]
    try:
        assert [server.port for server in servers] == [first, first + 1]
        with pytest.raises(
            errors.ClusterConfigError,
            match=rf"spark.tfos_ml.port={first}, spark.port.maxRetries=1: 127.0.0.1:{first}-{first + 1} cannot be "
            "listened on: .*Address already in use",
        ):
            ControlServer(found, ONE)
    finally:
        for server in servers:
            server.close()


def test_reserved_ports_and_row_servers_share_a_range_without_a_clash():
    first = free_ports(4)
    ports = range(first, first + 4)
    reserved = [ReservedPort() for _ in range(2)]
    servers = []
    try:
        for port in reserved:
            port.reserve(ports)
            servers.append(transport.TransportServer(addresses.node_endpoint("127.0.0.1", ports), "token"))
        assert [port.number for port in reserved] == [first, first + 1]
        assert [server.port for server in servers] == [first + 3, first + 2]
        setting = rf"spark\.tfos_ml\.nodePorts={first}-{first + 3}"
        reserved.append(ReservedPort())
        with pytest.raises(errors.ClusterConfigError, match=f"{setting}: none of these 4 ports is free"):
            reserved[-1].reserve(ports)
        with pytest.raises(errors.ClusterConfigError, match=f"{setting}: .* cannot be listened on"):
            transport.TransportServer(addresses.node_endpoint("127.0.0.1", ports), "token")
    finally:
        for port in reserved:
            port.release()
        for server in servers:
            server.close()


# Out of reach


def test_a_driver_out_of_reach_is_an_error_that_names_the_settings():
    name, port = "no-such-host.invalid", free_ports(1)
    with pytest.raises(NodeFailure) as caught:
        check_driver(ControlAddress(f"grpc+tls://{name}:{port}", ""))
    found = find_failure(str(caught.value)).to_error()
    assert isinstance(found, errors.ClusterConfigError)
    assert f"spark.driver.host={name}" in str(found)
    assert f"spark.tfos_ml.port ({port} now)" in str(found)


def test_a_node_out_of_reach_of_feed_tasks_is_an_error_that_names_its_setting():
    port = free_ports(1)
    server = ControlServer("127.0.0.1", ONE)
    nodes = (FeedNode(0, "127.0.0.1", f"grpc+tls://127.0.0.1:{port}", "worker:0"),)
    try:
        with pytest.raises(NodeFailure) as caught:
            list(feed_elements(FeedSpec(1, "input", nodes, server.address, patience=1), 0, [1, 2]))
    finally:
        server.close()
    found = find_failure(str(caught.value)).to_error()
    assert isinstance(found, errors.NodeLostError)
    assert f"127.0.0.1:{port}" in str(found)
    assert "spark.tfos_ml.nodePorts" in str(found)


def test_ports_of_variables_but_those_of_services_of_kubernetes(monkeypatch):
    for text, ports in [("9997-9999", range(9997, 10000)), ("tcp://10.0.0.7:6006", None)]:
        monkeypatch.setenv("TENSORBOARD_PORT", text)
        assert addresses.ports_of_variable("TENSORBOARD_PORT") == ports
