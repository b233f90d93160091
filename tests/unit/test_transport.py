"""Who is let in, and what strangers and malformed messages can do to a server: nothing."""

import contextlib
import json
import random
import socket
import ssl
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
from tfos_ml.protocol.control_messages import (
    AssignPartition,
    ClaimPartition,
    CommitPartition,
    Enter,
    GatherRound,
    GetCommitted,
    GetOutcome,
    InferRows,
    NodeProgress,
    PutPartition,
    ReleasePartition,
    ReportFailure,
    ReportGone,
    ReportProgress,
    SendResults,
)

DEADLINE = 30.0
GROWTH_MIB = 64
CALLS, CALL_BYTES = 8, 1 << 30
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

    def port(self, location: str) -> int:
        return int(location.rsplit(":", 1)[1])

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


# Strangers


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


def dial(port: int, context: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), DEADLINE)
    try:
        return context.wrap_socket(connection) if context is not None else connection
    except OSError:
        connection.close()
        raise


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def opening(path: bytes = b"/arrow.flight.protocol.FlightService/DoAction") -> bytes:
    """How a call begins, up to its body."""
    headers = {
        b":method": b"POST",
        b":scheme": b"https",
        b":path": path,
        b":authority": b"tfos-ml-run",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    literal = b"".join(b"\0" + bytes([len(k)]) + k + bytes([len(v)]) + v for k, v in headers.items())
    windows = frame(4, 0, 0, b"")
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + windows + frame(1, 4, 1, literal)


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


class Sender:
    """Sends one call's body as fast as the server lets it."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._windows = {0: 65535, 1: 65535}
        self._received = b""
        self.sent = 0

    def send(self, size: int) -> None:
        """Send an action whose body has `size` bytes, until the server has them all or ends the connection."""
        action = b"\x0a\x08progress\x12" + varint(size)
        self._connection.sendall(opening())
        head = b"\0" + struct.pack(">I", len(action) + size) + action
        self._connection.sendall(frame(0, 0, 1, head))
        self._use(len(head))
        zeros = bytes(16384)
        while self.sent < size:
            while min(self._windows.values()) < len(zeros):
                self._hear()
            self._connection.sendall(frame(0, 0, 1, zeros))
            self._use(len(zeros))
            self.sent += len(zeros)
        self._connection.sendall(frame(0, 1, 1, b""))
        while self._hear():
            pass

    def _use(self, size: int) -> None:
        for stream in self._windows:
            self._windows[stream] -= size

    def _hear(self) -> bool:
        """Take up one frame; False at the answer's end."""
        kind, flags, stream, payload = self._frame()
        if kind == 8:  # WINDOW_UPDATE
            self._windows[stream] += struct.unpack(">I", payload)[0]
        elif kind == 4 and not flags & 1:  # SETTINGS
            for name, value in struct.iter_unpack(">HI", payload):
                self._windows[1] += (value - 65535) if name == 4 else 0
            self._connection.sendall(frame(4, 1, 0, b""))
        elif kind == 6 and not flags & 1:  # PING
            self._connection.sendall(frame(6, 1, 0, payload))
        return not (kind == 1 and flags & 1)

    def _frame(self) -> tuple[int, int, int, bytes]:
        head = self._take(9)
        return head[3], head[4], struct.unpack(">I", head[5:])[0], self._take(int.from_bytes(head[:3], "big"))

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            more = self._connection.recv(65536)
            if not more:
                raise ConnectionError("closed by the server")
            self._received += more
        taken, self._received = self._received[:size], self._received[size:]
        return taken


@pytest.mark.parametrize("stranger", ["no TLS", "no certificate", "certificate of another run"])
def test_eight_calls_of_a_gibibyte_by_strangers_cost_the_driver_no_memory(servers, tmp_path, stranger):
    context = None if stranger == "no TLS" else tls("other" if "another" in stranger else None, tmp_path)
    assert servers.is_serving()
    before = servers.peak_mib()

    def call(_: int) -> int:
        sender = None
        with contextlib.suppress(OSError), dial(servers.port(servers.driver), context) as connection:
            sender = Sender(connection)
            sender.send(CALL_BYTES)
        return sender.sent if sender is not None else 0

    with ThreadPoolExecutor(CALLS) as pool:
        sent = list(pool.map(call, range(CALLS)))
    assert max(sent) < CALL_BYTES
    assert servers.peak_mib() - before < GROWTH_MIB
    assert servers.is_serving()
    assert servers.finish() == NOTHING_CAME_IN


# Malformed messages


def some_bytes(rng: random.Random, most: int = 300) -> bytes:
    start = rng.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n", b"{"])
    return start + rng.randbytes(rng.randrange(most))


def send_raw(connection: socket.socket, content: bytes) -> bytes:
    """What comes back, until the other end closes; strangers do not wait for that for ever."""
    connection.settimeout(DEADLINE)
    answer = b""
    with contextlib.suppress(OSError):
        connection.sendall(content)
        if not isinstance(connection, ssl.SSLSocket):
            connection.shutdown(socket.SHUT_WR)
        while more := connection.recv(65536):
            answer += more
    return answer


CALLS_OF_MEMBERS = [
    ReportProgress(1, 1, NodeProgress(last_announcement=0), []),
    ReportGone(1, False),
    GatherRound(1, 0, 2, "{}"),
    Enter(1, 5),
    ReportFailure(1, "why"),
    AssignPartition(1, 2, "a"),
    ClaimPartition(1, 2, "a"),
    CommitPartition(1, 2, "a", 3),
    ReleasePartition(1, 2, "a"),
    GetCommitted(1, 2, "a"),
    GetOutcome(1),
]
GOOD = {type(call).__name__: decode(dict, encode(call)) for call in CALLS_OF_MEMBERS}
SEND_RESULTS = decode(dict, encode(SendResults(1)))
PUT = decode(dict, encode(PutPartition(1, 0, "a", "input", 1, 60.0)))
EXCHANGE = decode(dict, encode(InferRows("input", 60.0)))
GOOD_PUT = flight.FlightDescriptor.for_command(encode(PUT))
GOOD_EXCHANGE = flight.FlightDescriptor.for_command(encode(EXCHANGE))
WRONG = [None, "1", 1.5, [], {}, True, [1], {"rank": 1}, "\u0000"]


def spoiled(rng: random.Random, good: dict) -> bytes:
    """A message that is not right."""
    message = dict(good)
    name = rng.choice(sorted(name for name in good if name not in ("type", "message", "patience")))
    kind = rng.randrange(7)
    if kind == 0:
        del message[name]
    elif kind == 6:
        message[rng.choice(["x", "Rank", ""])] = rng.choice(WRONG)
    elif kind == 1:
        message[name] = rng.choice([value for value in WRONG if type(value) is not type(good[name])])
    elif kind == 2:
        return encode(message)[:-1]
    elif kind == 3:
        return some_bytes(rng)
    elif kind == 4:
        return rng.choice([b"[]", b"null", b"1", b'"x"', b"\x91" * 100_000, b"\xff\xfe", b"{}", b""])
    else:
        return encode({f"{name}x": value for name, value in message.items()})
    return encode(message)


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


def some_batch(rng: random.Random) -> pa.RecordBatch:
    name = rng.choice(["x", "rows", "blocks"])
    values = rng.choice([[1, 2], ["a"], [b"\xff", None], [[1.5]], [{"y": None}], []])
    return pa.record_batch([pa.array(values)], [name])


def some_descriptor(rng: random.Random, good: dict) -> flight.FlightDescriptor:
    if rng.random() < 0.2:
        return flight.FlightDescriptor.for_path(*[str(rng.random()) for _ in range(rng.randrange(3))])
    return flight.FlightDescriptor.for_command(spoiled(rng, good))


def fuzz_as_stranger(servers: Servers, rng: random.Random, context: ssl.SSLContext | None) -> None:
    content = opening() + some_bytes(rng) if rng.random() < 0.2 else some_bytes(rng)
    port = servers.port(rng.choice([servers.driver, servers.node]))
    with contextlib.suppress(OSError), dial(port, context) as stranger:
        answer = send_raw(stranger, content)
        assert not answer or (context is None and answer[0] == TLS_ALERT), answer


def fuzz_as_member(driver: flight.FlightClient, node: flight.FlightClient, rng: random.Random) -> None:
    action = rng.choice(sorted(GOOD))
    kind = rng.randrange(12)
    if kind == 0:
        name = rng.choice([some_bytes(rng).decode("latin-1"), "", "progress", "close", "__init__", "x" * 100_000])
        refused(lambda: act(rng.choice([driver, node]), name, encode(GOOD[action])))
    elif kind == 1:
        refused(lambda: put(driver, some_descriptor(rng, SEND_RESULTS), some_batch(rng)))
    elif kind == 2:
        refused(lambda: put(node, rng.choice([some_descriptor(rng, PUT), GOOD_PUT]), some_batch(rng)))
    elif kind == 3:
        refused(lambda: exchange(node, rng.choice([some_descriptor(rng, EXCHANGE), GOOD_EXCHANGE]), some_batch(rng)))
    elif kind == 4:
        refused(lambda: exchange(driver, some_descriptor(rng, EXCHANGE), some_batch(rng)))
    elif kind == 5:
        refused(lambda: rng.choice([driver, node]).do_get(flight.Ticket(some_bytes(rng))).read_all())
    elif kind == 6:
        refused(lambda: rng.choice([driver, node]).get_schema(some_descriptor(rng, PUT)))
    else:
        refused(lambda: act(driver, action, spoiled(rng, GOOD[action])))


@pytest.mark.slow
def test_thousands_of_malformed_messages_are_refused_and_change_nothing(servers, tmp_path):
    rng = random.Random(12)
    contexts = [*[None] * 18, tls(None, tmp_path), tls("other", tmp_path)]
    before = servers.peak_mib()
    with (
        transport.connect(servers.driver, servers.token) as driver,
        transport.connect(servers.node, servers.token) as node,
    ):
        for number in range(2_000):
            if number % 10 < 3:
                fuzz_as_member(driver, node, rng)
            else:
                fuzz_as_stranger(servers, rng, rng.choice(contexts))
    assert servers.is_serving()
    assert servers.peak_mib() - before < GROWTH_MIB
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


@pytest.mark.parametrize("token", ["wrong", "", "x" * 4000])
def test_a_wrong_token_is_an_error_at_once_and_shown_nowhere(server, token, capfd):
    begin = time.monotonic()
    with transport.connect(server.location, token) as client, pytest.raises(flight.FlightUnavailableError) as refusal:
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


def test_a_closed_server_is_freed_with_all_that_it_holds():
    server = ControlServer("127.0.0.1", make_template(2))
    gone = weakref.ref(server)
    server.close()
    server.close()
    del server
    assert gone() is None


def test_a_process_that_had_a_server_exits_at_once(servers):
    assert servers.is_serving()
    begin = time.monotonic()
    servers.finish()
    assert time.monotonic() - begin < seconds(2)  # gRPC waits so long for a server that was not freed


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a handshake"])
def test_strangers_that_do_not_finish_the_handshake_do_not_hold_up_the_close(said):
    server = ControlServer("127.0.0.1", make_template(2))
    strangers = [socket.create_connection(("127.0.0.1", server.port), DEADLINE) for _ in range(20)]
    try:
        for stranger in strangers:
            stranger.sendall(said)
        begin = time.monotonic()
        server.close()
        assert time.monotonic() - begin < seconds(2)
    finally:
        for stranger in strangers:
            stranger.close()
