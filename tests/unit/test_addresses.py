"""Where servers listen, by Spark's settings, and what is said when they cannot."""

import socket
from types import SimpleNamespace

import pytest

from tfos_ml import errors
from tfos_ml.agent.feed_task import FeedNode, FeedSpec, feed_elements
from tfos_ml.agent.rendezvous import NodeInfo, ReservedPort
from tfos_ml.agent.spark_task import BarrierTask, check_driver, task_info_of
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol import addresses, transport
from tfos_ml.protocol.addresses import Endpoint
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import Done, ReportGone
from tfos_ml.protocol.failure import NodeFailure, find_failure
from tfos_ml.protocol.template import make_template

ONE = make_template(1)

CLUSTER = "spark://master:7077"
HAS_IPV6 = socket.has_ipv6 and addresses.is_loopback("::1")
CARD = {"rank": 0, "label": "worker:0", "port": 5, "versions": {}, "pid": 1}


def session(master=CLUSTER, **settings):
    """As much of a Spark session as settings are."""
    values = {"spark.master": master, "spark.driver.host": "10.0.0.1", **settings}
    return SimpleNamespace(conf=values)


def endpoint(master=CLUSTER, **settings):
    named = {f"spark.{name.replace('__', '.')}": value for name, value in settings.items()}
    return addresses.driver_endpoint(session(master, **named))


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "local[2,3]"])
def test_a_local_session_listens_where_no_other_host_reaches_it(master):
    found = endpoint(master, driver__bindAddress="0.0.0.0")
    assert (found.bind, found.host) == ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize(
    ("settings", "bind", "host"),
    [
        ({}, "10.0.0.1", "10.0.0.1"),
        ({"driver__bindAddress": "0.0.0.0"}, "0.0.0.0", "10.0.0.1"),
        ({"driver__host": "driver.example", "driver__bindAddress": "10.0.0.7"}, "10.0.0.7", "driver.example"),
        ({"driver__host": "[fd00::2]"}, "fd00::2", "fd00::2"),
        ({"driver__host": "fd00::2", "driver__bindAddress": "[::]"}, "::", "fd00::2"),
    ],
)
def test_elsewhere_the_driver_listens_where_spark_does(settings, bind, host):
    found = endpoint(**settings)
    assert (found.bind, found.host) == (bind, host)


@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({}, range(1)),
        ({"tfos_ml__port": "5000"}, range(5000, 5017)),
        ({"tfos_ml__port": "5000", "port__maxRetries": "0"}, range(5000, 5001)),
        ({"tfos_ml__port": "65530"}, range(65530, 65536)),
    ],
)
def test_ports_of_the_driver(settings, ports):
    assert endpoint(**settings).ports == ports


@pytest.mark.parametrize("name", ["tfos_ml__port", "port__maxRetries"])
@pytest.mark.parametrize("value", ["-1", "x", "1.5", "65536"])
def test_a_port_that_is_none_is_named(name, value):
    with pytest.raises(errors.ClusterConfigError, match=f"spark.{name.replace('__', '.')}={value} is not a number"):
        endpoint(**{name: value})


@pytest.mark.parametrize(("text", "ports"), [("0", range(1)), ("5000", range(5000, 5001)), ("5-7", range(5, 8))])
def test_ports_of_nodes(text, ports):
    assert addresses.node_ports(session(**{"spark.tfos_ml.nodePorts": text})) == ports


@pytest.mark.parametrize("text", ["-", "7-5", "x", "0-5", "5-65536", "-5", "1-2-3"])
def test_ports_of_nodes_that_are_none_are_named(text):
    with pytest.raises(errors.ClusterConfigError, match=rf"spark\.tfos_ml\.nodePorts={text} is no range of ports"):
        addresses.node_ports(session(**{"spark.tfos_ml.nodePorts": text}))


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


@pytest.mark.parametrize(
    ("address", "why"), [("192.0.2.99", "Cannot assign requested address"), ("no-such-host.invalid", "not known|resol")]
)
def test_an_address_that_is_not_this_hosts_is_named(address, why):
    with pytest.raises(errors.ClusterConfigError, match=f"spark.driver.bindAddress={address}, .*{why}"):
        ControlServer(endpoint(driver__bindAddress=address), ONE)


def test_what_listens_on_all_addresses_is_reached_at_the_host():
    server = ControlServer(Endpoint("127.0.0.1", "0.0.0.0"), ONE)
    client = ControlClient(**server.address)
    try:
        assert server.location == f"grpc+tls://127.0.0.1:{server.port}"
        assert client.call(ReportGone(0)) == Done()
    finally:
        client.close()
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


# IPv6


@pytest.mark.skipif(not HAS_IPV6, reason="no IPv6 here")
def test_ipv6_from_the_server_to_the_call():
    server = ControlServer("::1", ONE)
    client = ControlClient(**server.address)
    try:
        assert server.location == f"grpc+tls://[::1]:{server.port}"
        assert addresses.address_towards(server.location) == "::1"
        assert client.call(ReportGone(0)) == Done()
    finally:
        client.close()
        server.close()


@pytest.mark.skipif(not HAS_IPV6, reason="no IPv6 here")
def test_a_reserved_port_is_taken_in_both_families():
    port = ReservedPort()
    port.reserve()
    try:
        for family, address in [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]:
            with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
                other.bind((address, port.number))
    finally:
        port.release()


@pytest.mark.parametrize(("host", "address"), [("10.0.0.1", "10.0.0.1:5"), ("fd00::2", "[fd00::2]:5"), ("a", "a:5")])
def test_addresses_in_the_cluster_spec(host, address):
    assert NodeInfo(**CARD, host=host).address == address


class Task:
    """As much of Spark's task context as an address is."""

    def __init__(self, address):
        self._address = address

    def partitionId(self):
        return 0

    def getTaskInfos(self):
        return [SimpleNamespace(address=self._address)]

    def cpus(self):
        return 1

    def resources(self):
        return {}

    def taskAttemptId(self):
        return 0

    def attemptNumber(self):
        return 0


@pytest.mark.parametrize(
    ("address", "control", "host"),
    [
        ("10.0.0.5:4000", None, "10.0.0.5"),
        ("[fd00::2]:4000", None, "fd00::2"),
        ("192.0.2.2:4000", "grpc+tls://127.0.0.1:5", "127.0.0.1"),  # a local session
        ("127.0.0.3:4000", "grpc+tls://127.0.0.1:5", "127.0.0.3"),
        ("worker.example:4000", None, "worker.example"),
    ],
)
def test_where_a_node_of_a_barrier_job_is(address, control, host):
    location = {"location": control, "token": ""} if control else None
    assert BarrierTask(Task(address), location).host == host


# Out of reach


@pytest.mark.parametrize("name", ["127.0.0.1", "no-such-host.invalid"])
def test_a_driver_out_of_reach_is_an_error_that_names_the_settings(name):
    port = free_ports(1)
    with pytest.raises(NodeFailure) as caught:
        check_driver({"location": f"grpc+tls://{name}:{port}", "token": ""})
    found = find_failure(str(caught.value)).to_error()
    assert isinstance(found, errors.ClusterConfigError)
    assert f"spark.driver.host={name}" in str(found)
    assert f"spark.tfos_ml.port ({port} now)" in str(found)


def test_a_driver_in_reach_is_fine():
    server = ControlServer("127.0.0.1", ONE)
    try:
        check_driver(server.address)
    finally:
        server.close()


def test_a_barrier_task_whose_host_cannot_find_the_driver_trains_without_it():
    control = {"location": "grpc+tls://no-such-host.invalid:5", "token": ""}
    assert BarrierTask(Task("10.0.0.5:4000"), control).host == "10.0.0.5"


def test_a_node_out_of_reach_of_feed_tasks_is_an_error_that_names_its_setting():
    port = free_ports(1)
    server = ControlServer("127.0.0.1", ONE)
    nodes = (FeedNode(0, "127.0.0.1", f"grpc+tls://127.0.0.1:{port}"),)
    try:
        with pytest.raises(NodeFailure) as caught:
            list(feed_elements(FeedSpec(1, "input", nodes, server.address, patience=1), 0, [1, 2]))
    finally:
        server.close()
    found = find_failure(str(caught.value)).to_error()
    assert isinstance(found, errors.NodeLostError)
    assert f"127.0.0.1:{port}" in str(found)
    assert "spark.tfos_ml.nodePorts" in str(found)


def test_where_a_node_of_a_plain_job_is():
    assert task_info_of(Task(""), 0, {"location": "grpc+tls://127.0.0.1:5", "token": ""}).host == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "ports"),
    [("9997", range(9997, 9998)), ("9997-9999", range(9997, 10000)), ("", None), ("tcp://10.0.0.7:6006", None)],
)
def test_ports_of_variables_but_those_of_services_of_kubernetes(text, ports, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_PORT", text)
    assert addresses.ports_of_variable("TENSORBOARD_PORT") == ports


@pytest.mark.parametrize("text", ["x", "70000", "9999-9997"])
def test_variables_that_are_no_ports_are_named(text, monkeypatch):
    monkeypatch.setenv("TFOS_SERVER_PORT", text)
    with pytest.raises(errors.ClusterConfigError, match=f"TFOS_SERVER_PORT={text} is no range"):
        addresses.ports_of_variable("TFOS_SERVER_PORT")
