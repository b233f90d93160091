"""Who is let in, and what strangers and malformed messages can do to a server: nothing."""

import contextlib
import itertools
import random
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from conftest import seconds

from tfos_ml.agent.row_receiver import RowReceiver
from tfos_ml.agent.row_server import GrantClient, RowServer
from tfos_ml.data import spool
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol import transport
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.codec import decode, encode
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import GatherRound, PutPartition, ReportFailure

DEADLINE = 30.0
TLS_ALERT = 0x15


class Servers:
    """A driver's server and a node's, and what has come in."""

    def __init__(self, spool_directory: Path):
        self.told: list[object] = []
        self.driver = ControlServer("127.0.0.1", make_template(2), lambda: True)
        self.inlet = RowReceiver(spool.SpoolDirectories(None, spool_directory), self.told.append)
        self.token = self.driver.address.token
        self.claims = ControlClient(self.driver.address)
        self.node = RowServer(self.inlet, "127.0.0.1", self.token, GrantClient(self.claims, 60))

    def have_taken_nothing(self) -> bool:
        nodes, feeds = self.driver.nodes, self.driver.feeds
        come = [nodes.progress(), self.driver.all_gather.first(), nodes.take_reports(), nodes.results().rows, self.told]
        come += [nodes.failure(), feeds.stop_requested, self.inlet.progress()["rows"]]
        return not any(come)

    def are_serving(self) -> bool:
        with transport.connect(self.driver.location, self.token) as member, pytest.raises(pa.ArrowKeyError):
            list(member.do_action(flight.Action("hello", b"{}")))
        return True


@pytest.fixture
def servers(tmp_path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    yield servers
    for part in (servers.node, servers.inlet, servers.claims, servers.driver):
        part.close()
    assert not list(tmp_path.glob("*.arrow"))


def tls(token: str | None, directory: Path) -> ssl.SSLContext:
    """What a stranger would use: it trusts whoever answers, and shows a certificate of some run or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if token is not None:
        credentials = transport.make_credentials(token)
        path = directory / "credentials.pem"
        path.write_bytes(credentials.certificate + credentials.key)
        context.load_cert_chain(path)
    return context


def answer_to(port: int, content: bytes, context: ssl.SSLContext | None) -> bytes:
    """What comes back to a stranger, until the other end closes; strangers do not wait for that for ever."""
    answer = b""
    with contextlib.suppress(OSError), contextlib.ExitStack() as connection:
        stranger = connection.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE))
        if context is not None:
            stranger = connection.enter_context(context.wrap_socket(stranger))
        stranger.sendall(content)
        if context is None:
            stranger.shutdown(socket.SHUT_WR)
        while more := stranger.recv(65536):
            answer += more
    return answer


PUT = decode(dict, encode(PutPartition(1, 0, "a", "input", 1, 60.0)))
NAMES = ["ReportProgress", "GatherRound", "PutPartition", "__init__", "x" * 100_000]
MALFORMED = [
    encode({name: value for name, value in PUT.items() if name != "claimant"}),
    encode({**PUT, "more": 1}),
    encode({**PUT, "partition": "0"}),
    encode(PUT)[:-1],
    b"",
    b"\x91" * 100_000,
]


def refused(call) -> None:
    """Each refusal is one of Arrow's errors, and says something."""
    with pytest.raises(pa.ArrowException) as refusal:
        call()
    assert str(refusal.value)


def act(member: flight.FlightClient, action: str, body: bytes) -> None:
    list(member.do_action(flight.Action(action, body), flight.FlightCallOptions(timeout=DEADLINE)))


def put(member: flight.FlightClient, descriptor: flight.FlightDescriptor, batch: pa.RecordBatch) -> None:
    writer, reader = member.do_put(descriptor, batch.schema, flight.FlightCallOptions(timeout=DEADLINE))
    with writer:
        writer.write_batch(batch)
        writer.done_writing()
        while reader.read() is not None:
            pass


def exchange(member: flight.FlightClient, descriptor: flight.FlightDescriptor, batch: pa.RecordBatch) -> None:
    writer, reader = member.do_exchange(descriptor, flight.FlightCallOptions(timeout=DEADLINE))
    with writer:
        writer.begin(batch.schema)
        writer.write_batch(batch)
        writer.done_writing()
        reader.read_all()


BATCH = pa.record_batch([pa.array([[1.5]])], ["x"])


@pytest.mark.slow
def test_what_strangers_say_is_not_answered_and_changes_nothing(servers, tmp_path):
    rng = random.Random(12)
    contexts = [*[None] * 18, tls(None, tmp_path), tls("other", tmp_path)]
    before = psutil.Process().memory_info().rss
    for _ in range(300):
        start = rng.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n", b"{"])
        location, context = rng.choice([servers.driver, servers.node]).location, rng.choice(contexts)
        answer = answer_to(int(location.rsplit(":", 1)[1]), start + rng.randbytes(rng.randrange(300)), context)
        assert not answer or (context is None and answer[0] == TLS_ALERT), answer
    assert servers.are_serving()
    assert servers.have_taken_nothing()
    assert psutil.Process().memory_info().rss - before < 64 << 20


def test_malformed_messages_of_members_are_refused_and_change_nothing(servers):
    """Of single messages, many more are in ``test_fuzz.py``; malformed rows are in ``test_endpoint.py``."""
    with (
        transport.connect(servers.driver.location, servers.token) as driver,
        transport.connect(servers.node.location, servers.token) as node,
    ):
        for member, (name, content) in itertools.product((driver, node), itertools.product(NAMES, MALFORMED)):
            refused(lambda member=member, name=name, content=content: act(member, name, content))
        for member, content in itertools.product((driver, node), MALFORMED):
            for descriptor in (flight.FlightDescriptor.for_command(content), flight.FlightDescriptor.for_path("x")):
                refused(lambda member=member, descriptor=descriptor: put(member, descriptor, BATCH))
                refused(lambda member=member, descriptor=descriptor: exchange(member, descriptor, BATCH))
    assert servers.have_taken_nothing()


def test_a_message_above_the_limit_is_refused_and_one_below_is_not(servers):
    client = ControlClient(servers.driver.address)
    try:
        with pytest.raises(pa.ArrowInvalid, match="the message has .* bytes, expected at most 8388608"):
            client.call(ReportFailure(0, "x" * transport.MAX_MESSAGE_BYTES))
        client.call(GatherRound(0, 7, 2, "x" * (transport.MAX_MESSAGE_BYTES - 100)))
    finally:
        client.close()
    assert servers.driver.nodes.failure() is None


def test_a_wrong_token_is_an_error_at_once_and_shown_nowhere(servers, capfd):
    begin = time.monotonic()
    with (
        transport.connect(servers.driver.location, "wrong") as client,
        pytest.raises(flight.FlightUnavailableError) as refusal,
    ):
        list(client.do_action(flight.Action("GetOutcome", b"{}")))
    assert time.monotonic() - begin < seconds(5)
    shown = f"{refusal.value} {capfd.readouterr()} {transport.make_credentials(servers.token)!r}"
    assert servers.token not in shown
    assert "PRIVATE KEY" not in shown


def test_a_client_says_nothing_to_a_server_that_has_not_the_token():
    impostor = transport.TransportServer("127.0.0.1", "impostor")
    try:
        with transport.connect(impostor.location, "token") as client, pytest.raises(flight.FlightUnavailableError):
            list(client.do_action(flight.Action("GetOutcome", b"{}")))
    finally:
        impostor.close()


def test_strangers_that_do_not_finish_the_handshake_do_not_hold_up_the_close():
    server = ControlServer("127.0.0.1", make_template(2))
    with contextlib.ExitStack() as strangers:
        for said in [b"", b"\x16\x03\x01\x02\x00\x01"] * 10:  # nothing, or half a handshake
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", server.port), DEADLINE))
            stranger.sendall(said)
        begin = time.monotonic()
        server.close()
        assert time.monotonic() - begin < seconds(2)
