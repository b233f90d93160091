import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from conftest import wait_until

from tfos_ml.agent.progress_link import ProgressLink, period_for
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol import control_client, transport
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import Done, NodeProgress, ReportGone, ReportProgress, Request
from tfos_ml.protocol.template import make_template

DEADLINE = 10.0
GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": b"\0" * 4096,
    "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "half of a preface": b"PRI * HTTP/2.0\r\n",
    "oversized frame": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 65536,
}


class Shutdown(Request[Done], frozen=True):
    """What no server offers."""

    rank: int


@pytest.fixture
def server():
    server = ControlServer("127.0.0.1", make_template(8))
    yield server
    server.close()


@pytest.fixture
def connect(server):
    """Makes clients of the server, with its token unless told otherwise."""
    clients = []

    def connect(token=None):
        clients.append(ControlClient(server.address["location"], token or server.address["token"]))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def say(client, rank, *reports, rows=0):
    """Report once, over a link of its own."""
    return client.call(ReportProgress(rank, uuid.uuid4().hex, 1, NodeProgress(rows=rows), 0, list(reports)))


def bare_socket(server):
    return socket.create_connection(("127.0.0.1", server.port), DEADLINE)


def is_served(client):
    return say(client, 0).stop is False


def test_latest_progress_of_each_node_is_kept(server, connect):
    client = connect()
    for rank, rows in [(0, 5), (1, 7), (0, 9)]:
        say(client, rank, rows=rows)
    assert server.nodes.progress() == {0: NodeProgress(rows=9), 1: NodeProgress(rows=7)}


def test_reports_are_taken_once_and_in_order(server, connect):
    client = connect()
    say(client, 0, {"loss": 2.0}, {"loss": 1.5})
    say(client, 0, {"loss": 1.0})
    assert server.take_reports() == [{"loss": 2.0}, {"loss": 1.5}, {"loss": 1.0}]
    assert server.take_reports() == []


def test_nodes_are_told_to_stop_with_their_next_call(server, connect):
    client = connect()
    assert say(client, 0).stop is False
    server.nodes.stop()
    assert say(client, 0).stop is True


def test_wait_gone_waits_for_every_node_that_was_heard_of(server, connect):
    client = connect()
    assert server.nodes.wait_gone(0)
    for rank in (0, 1):
        say(client, rank)
    client.call(ReportGone(0))
    assert not server.nodes.wait_gone(0)
    waiter = threading.Timer(0.1, client.call, [ReportGone(1)])
    waiter.start()
    assert server.nodes.wait_gone(DEADLINE)
    waiter.join(DEADLINE)


def test_many_nodes_are_heard_at_once(server, connect):
    clients = [connect() for _ in range(8)]
    threads = [threading.Thread(target=say, args=(c, r, {"rank": r})) for r, c in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(server.nodes.progress()) == list(range(8))
    assert sorted(r["rank"] for r in server.take_reports()) == list(range(8))


@pytest.mark.parametrize("token", ["wrong", " ", "a" * 4000])
def test_wrong_token_is_turned_away_and_others_are_served(server, connect, token):
    with pytest.raises(flight.FlightUnauthenticatedError):
        say(connect(token), 3)
    assert server.nodes.progress() == {}
    assert is_served(connect())


@pytest.mark.parametrize(
    "call",
    [
        lambda c: list(c.do_action(flight.Action("ReportProgress", b"{}"))),
        lambda c: list(c.list_actions()),
        lambda c: list(c.list_flights()),
        lambda c: c.do_get(flight.Ticket(b"x")).read_all(),
        lambda c: c.get_flight_info(flight.FlightDescriptor.for_path("x")),
    ],
    ids=["do_action", "list_actions", "list_flights", "do_get", "get_flight_info"],
)
def test_no_call_is_answered_without_a_token(server, connect, call):
    location = server.address["location"]
    for client in (
        flight.FlightClient(location, disable_server_verification=True),
        flight.FlightClient(location.replace("+tls", "")),
    ):
        with client, pytest.raises(flight.FlightUnavailableError):
            call(client)
    assert is_served(connect())


@pytest.mark.parametrize("body", [b"", b"garbage \xff", b"[]", b"{}", b'{"rank": "x"}', b'{"rank": 1}'])
def test_malformed_body_is_an_error_for_its_sender_alone(server, connect, body):
    with transport.connect(**server.address) as client, pytest.raises(pa.ArrowInvalid):
        list(client.do_action(flight.Action("ReportProgress", body)))
    assert is_served(connect())
    connect().call(ReportGone(0))
    assert server.nodes.wait_gone(0)


def test_unknown_action_is_an_error_for_its_sender_alone(connect):
    with pytest.raises(pa.ArrowException, match="unknown action"):
        connect().call(Shutdown(0))
    assert is_served(connect())


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_on_the_port_does_not_disturb_others(server, connect, garbage):
    client = connect()
    assert is_served(client)
    with bare_socket(server) as stranger:
        stranger.sendall(garbage)
        assert is_served(client)
        assert is_served(connect())


def test_half_open_connections_do_not_disturb_others_nor_the_close(connect):
    server = ControlServer("127.0.0.1", make_template(8))
    strangers = [bare_socket(server) for _ in range(20)]
    client = ControlClient(**server.address)
    assert is_served(client)
    closer = threading.Thread(target=server.close)
    closer.start()
    closer.join(DEADLINE)
    assert not closer.is_alive()
    client.close()
    for stranger in strangers:
        stranger.close()


def test_port_is_closed_after_close():
    server = ControlServer("127.0.0.1", make_template(8))
    bare_socket(server).close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        bare_socket(server)


def test_nothing_but_the_given_address_is_listened_on(server):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), DEADLINE)


def test_each_server_has_a_token_of_its_own(server):
    other = ControlServer("127.0.0.1", make_template(8))
    other.close()
    assert len(server.address["token"]) >= 32
    assert server.address["token"] != other.address["token"]


def test_token_is_neither_shown_nor_logged(server, connect, caplog, capfd):
    token = server.address["token"]
    with caplog.at_level(logging.DEBUG):
        client = connect()
        link = ProgressLink(connect(), 0, NodeProgress)
        link.start()
        with pytest.raises(pa.ArrowException) as unknown:
            client.call(Shutdown(0))
        with pytest.raises(pa.ArrowException) as refused:
            say(connect(f"{token}x"), 0)
        server.close()
        link.close()  # can no longer reach the server, and says so
    shown = [repr(server), str(server), repr(client), repr(link), str(unknown.value), str(refused.value)]
    assert token not in "\n".join([*shown, caplog.text, *capfd.readouterr()])
    assert "not reachable" in caplog.text


class TestProgressLink:
    def test_brings_progress_and_what_was_reported_until_the_close(self, server, connect):
        link = ProgressLink(connect(), 4, lambda: NodeProgress(rows=11), period=DEADLINE)
        link.start()
        link.report({"loss": 1.0})
        link.report({"loss": 0.5})
        link.close()
        assert not server.nodes.wait_gone(0)
        link.say_gone()
        assert server.nodes.progress() == {4: NodeProgress(rows=11)}
        assert server.take_reports() == [{"loss": 1.0}, {"loss": 0.5}]
        assert server.nodes.wait_gone(0)

    def test_learns_that_it_should_stop(self, server, connect):
        server.nodes.stop()
        link = ProgressLink(connect(), 0, NodeProgress, period=0.01)
        link.start()
        link.close()
        assert link.driver().answer.stop

    def test_does_not_disturb_the_node_when_the_driver_is_gone(self, server, connect):
        client = connect()
        server.close()
        link = ProgressLink(client, 0, NodeProgress)
        link.start()
        link.report({"loss": 1.0})
        link.close()
        assert link.driver().answer is None


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 0.5), (100, 0.5), (1000, 5.0)])
def test_large_clusters_report_less_often(nodes, seconds):
    assert period_for(nodes) == seconds


@pytest.mark.parametrize("size", [0, 10, (1 << 20) + 1])
def test_files_arrive_whole_with_their_report_and_go_with_the_server(server, connect, tmp_path, size):
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    report = {"name": "checkpoint-3", "epoch": 3}
    connect().send_file(tmp_path / "file", report, DEADLINE)
    (received,) = server.take_reports()
    path = Path(received.pop("path"))
    assert received == report
    assert path.read_bytes() == content
    server.close()
    assert not path.exists()


def test_files_without_the_token_or_with_a_path_for_a_name_stay_in_their_place(server, connect, tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(flight.FlightUnauthenticatedError):
        connect("wrong").send_file(tmp_path / "file", {"name": "checkpoint"}, 1.0)
    assert server.take_reports() == []
    connect().send_file(tmp_path / "file", {"name": "../../elsewhere"}, DEADLINE)
    (received,) = server.take_reports()
    assert Path(received["path"]).name == "elsewhere"
    assert Path(received["path"]).parent.name.startswith("tfos_ml-")


SERVER = """
import sys
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.template import make_template
server = ControlServer("127.0.0.1", make_template(8))
print(server.address["location"], server.address["token"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def driver_process():
    """A control server in a process of its own, and its address."""
    command = [sys.executable, "-c", SERVER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    location, token = process.stdout.readline().split()
    yield process, {"location": location, "token": token}
    process.kill()
    process.communicate()


def test_a_driver_that_stands_still_is_not_gone_and_one_that_died_is(driver_process, monkeypatch):
    process, address = driver_process
    monkeypatch.setattr(control_client, "CALL_TIMEOUT", 0.5)
    monkeypatch.setattr(control_client, "REFUSED_SECONDS", 0.5)
    link = ProgressLink(ControlClient(**address), 0, NodeProgress, period=0.01)
    link.start()
    assert wait_until(lambda: link.answer is not None, DEADLINE)
    process.send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    assert not wait_until(lambda: link.is_driver_gone, 2)
    assert link.heard_at < stopped_at + 0.5
    process.send_signal(signal.SIGCONT)
    assert wait_until(lambda: link.heard_at > stopped_at + 2, DEADLINE)
    process.kill()
    assert wait_until(lambda: link.is_driver_gone, DEADLINE)
    link.close()
    link.say_gone()
