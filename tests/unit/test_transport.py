"""Who is let in, and what strangers and malformed messages can do to a server: nothing."""

import contextlib
import itertools
import json
import random
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from conftest import seconds

from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol import transport
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.codec import decode, encode
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import GatherRound, PutPartition, ReportFailure

DEADLINE = 30.0
GROWTH_MIB = 64
TLS_ALERT = 0x15
# A driver and a node in a process of its own. When its input ends it says what has come in.
SERVERS = """
import json, sys
from tfos_ml.agent.row_server import GrantClient
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.agent.row_server import RowServer
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.data import spool
from tfos_ml.agent.row_receiver import RowReceiver
from pathlib import Path

told = []
driver = ControlServer("127.0.0.1", make_template(2), lambda: True)
inlet = RowReceiver(spool.SpoolDirectories(None, Path(sys.argv[1])), lambda message: told.append(repr(message)))
claims = GrantClient(ControlClient(driver.address), 60)
node = RowServer(inlet, "127.0.0.1", driver.address.token, claims)
print(json.dumps([driver.location, node.location, driver.address.token]), flush=True)
sys.stdin.read()
nodes = driver.nodes
state = [nodes.progress(), driver.all_gather.first(), nodes.take_reports(), nodes.failure(), nodes.results().rows]
print(json.dumps([*state, driver.feeds.stop_requested, inlet.progress()["rows"], told]))
node.close(), inlet.close(), driver.close()
"""
NOTHING_CAME_IN = [{}, {}, [], None, [], False, 0, []]


@dataclass
class Servers:
    """A driver's server and a node's."""

    process: subprocess.Popen
    driver: str
    node: str
    token: str

    def peak_mib(self) -> float:
        """The most memory that the process has ever held."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024

    def is_serving(self) -> bool:
        with transport.connect(self.driver, self.token) as member, pytest.raises(pa.ArrowKeyError, match="unknown"):
            list(member.do_action(flight.Action("hello", b"{}")))
        return True

    def finish(self) -> list:
        """End the process; what had come in by then."""
        output, _ = self.process.communicate(timeout=DEADLINE)
        return json.loads(output)


@pytest.fixture
def servers(tmp_path) -> Iterator[Servers]:
    spool = tmp_path / "spool"
    spool.mkdir()
    command = [sys.executable, "-c", SERVERS, str(spool)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        yield Servers(process, *json.loads(process.stdout.readline()))
        assert not list(spool.iterdir())
        process.kill()


@pytest.fixture
def server() -> Iterator[ControlServer]:
    server = ControlServer("127.0.0.1", make_template(2))
    yield server
    server.close()


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
    before = servers.peak_mib()
    for _ in range(300):
        start = rng.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n", b"{"])
        location, context = rng.choice([servers.driver, servers.node]), rng.choice(contexts)
        answer = answer_to(int(location.rsplit(":", 1)[1]), start + rng.randbytes(rng.randrange(300)), context)
        assert not answer or (context is None and answer[0] == TLS_ALERT), answer
    assert servers.is_serving()
    assert servers.peak_mib() - before < GROWTH_MIB
    begin = time.monotonic()
    assert servers.finish() == NOTHING_CAME_IN
    assert time.monotonic() - begin < seconds(2)  # gRPC waits so long for a server that was not freed


def test_malformed_messages_of_members_are_refused_and_change_nothing(servers):
    """Of single messages, many more are in ``test_fuzz.py``; malformed rows are in ``test_endpoint.py``."""
    with (
        transport.connect(servers.driver, servers.token) as driver,
        transport.connect(servers.node, servers.token) as node,
    ):
        for member, (name, content) in itertools.product((driver, node), itertools.product(NAMES, MALFORMED)):
            refused(lambda member=member, name=name, content=content: act(member, name, content))
        for member, content in itertools.product((driver, node), MALFORMED):
            for descriptor in (flight.FlightDescriptor.for_command(content), flight.FlightDescriptor.for_path("x")):
                refused(lambda member=member, descriptor=descriptor: put(member, descriptor, BATCH))
                refused(lambda member=member, descriptor=descriptor: exchange(member, descriptor, BATCH))
    assert servers.finish() == NOTHING_CAME_IN


def test_a_message_above_the_limit_is_refused_and_one_below_is_not(server):
    client = ControlClient(server.address)
    try:
        with pytest.raises(pa.ArrowInvalid, match="the message has .* bytes, expected at most 8388608"):
            client.call(ReportFailure(0, "x" * transport.MAX_MESSAGE_BYTES))
        client.call(GatherRound(0, 7, 2, "x" * (transport.MAX_MESSAGE_BYTES - 100)))
    finally:
        client.close()
    assert server.nodes.failure() is None


def test_a_wrong_token_is_an_error_at_once_and_shown_nowhere(server, capfd):
    begin = time.monotonic()
    with transport.connect(server.location, "wrong") as client, pytest.raises(flight.FlightUnavailableError) as refusal:
        list(client.do_action(flight.Action("GetOutcome", b"{}")))
    assert time.monotonic() - begin < seconds(5)
    shown = f"{refusal.value} {capfd.readouterr()} {transport.make_credentials(server.address.token)!r}"
    assert server.address.token not in shown
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
