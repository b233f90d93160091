"""How the processes of a run call each other: Arrow Flight over TLS in which both sides prove their membership.

The run's random token is its only secret. Each process derives the key of the run's certificate
authority from it and signs a certificate for itself. A server requests such a certificate in the
handshake, so without the token it reads no byte of a call. A client sends nothing to a server
without such a certificate. Tokens, keys and certificates are not written to disk.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, Union

import pyarrow as pa
import pyarrow.flight as flight
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tfos_ml.common.timeouts import SERVER_CLOSE_SECONDS
from tfos_ml.errors import ClusterConfigError
from tfos_ml.protocol.addresses import Endpoint, bracketed
from tfos_ml.protocol.codec import MessageError, decode, encode

MAX_MESSAGE_BYTES = 8 << 20
"""The limit of one message. Rows and files travel in streams, which are read piece by piece."""

_AUTHORITY, _MEMBER = "tfos-ml-authority", "tfos-ml-run"  # members are known by their token, not by their address
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the curve P-256
_KEY_BYTES = 48  # 1.5 times those of the order, so that all keys are equally likely
_SECRET_BYTES = 32
_NOT_BEFORE, _NOT_AFTER = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)
_CONNECTIONS = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_ESTABLISHED = "01"
_CHANNEL_OPTIONS = [("grpc.enable_http_proxy", 0)]  # nodes and driver connect without a proxy

Stream: TypeAlias = Callable[[Any, Any, Any], None]
caller_port: ContextVar[int] = ContextVar("caller_port", default=0)
"""The port of the caller whose action this thread answers; 0 if it is not known."""


@dataclass(frozen=True)
class Credentials:
    """A process's own certificate and key, and the authority that it trusts, in PEM."""

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)


@lru_cache(maxsize=8)
def make_credentials(token: str) -> Credentials:
    """The credentials of this process for the run with this token."""
    authority = _authority_key(token)
    own = ec.generate_private_key(ec.SECP256R1())
    return Credentials(
        _certificate(_AUTHORITY, authority.public_key(), authority),
        _certificate(_MEMBER, own.public_key(), authority),
        own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def node_secret(token: str) -> bytes:
    """The secret with which nodes of a run authenticate each other; it does not reveal the token to their programs."""
    return HKDF(hashes.SHA256(), _SECRET_BYTES, salt=None, info=b"tfos_ml nodes").derive(token.encode())


def _authority_key(token: str) -> ec.EllipticCurvePrivateKey:
    """The key of the run's certificate authority; everyone with the token gets the same."""
    derived = HKDF(hashes.SHA256(), _KEY_BYTES, salt=None, info=b"tfos_ml certificate authority").derive(token.encode())
    return ec.derive_private_key(int.from_bytes(derived, "big") % (_ORDER - 1) + 1, ec.SECP256R1())


def _certificate(name: str, key: ec.EllipticCurvePublicKey, authority: ec.EllipticCurvePrivateKey) -> bytes:
    is_authority = name == _AUTHORITY
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(_AUTHORITY))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    )
    return builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def connect(location: str, token: str, options: Mapping[str, int] | None = None) -> flight.FlightClient:
    """A client of the server at `location`, with gRPC's `options`; calls fail at once if the tokens differ."""
    credentials = make_credentials(token)
    return flight.FlightClient(
        location,
        tls_root_certs=credentials.authority,
        cert_chain=credentials.certificate,
        private_key=credentials.key,
        override_hostname=_MEMBER,
        generic_options=[*_CHANNEL_OPTIONS, *(options or {}).items()],
    )


@contextlib.contextmanager
def checked_credentials() -> Iterator[None]:
    """Within the context, a wrong token raises ``FlightUnauthenticatedError``, which callers do not retry.

    gRPC itself would raise ``FlightUnavailableError``, which callers retry.
    """
    try:
        yield
    except flight.FlightUnavailableError as error:
        if "certificate" not in str(error).lower():  # gRPC has one code for everything that fails before a call
            raise
        raise flight.FlightUnauthenticatedError(f"client and server are not of the same run: {error}") from None


@dataclass(frozen=True)
class Service:
    """What a server offers, by the class of the message that asks for it.

    An action takes the message and returns a message as its answer. Puts and exchanges take the message, and Arrow
    Flight's reader and writer of the stream that comes with it.
    """

    actions: Mapping[type[Any], Callable[[Any], Any]] = field(default_factory=dict)
    puts: Mapping[type[Any], Stream] = field(default_factory=dict)
    exchanges: Mapping[type[Any], Stream] = field(default_factory=dict)


class TransportServer:
    """Listens from construction until it is closed, and answers only members of the run.

    For an address without ports, any free port is used. Two services may not offer the same message. Actions hold the
    lock of `changed`, and wake those who wait for a change. Raises ``ClusterConfigError`` if it cannot listen there.
    """

    def __init__(
        self, endpoint: Endpoint | str, token: str, *services: Service, changed: threading.Condition | None = None
    ):
        self._changed = changed or threading.Condition()
        endpoint = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self._actions = {
            request.__name__: (request, call) for service in services for request, call in service.actions.items()
        }
        self._puts = {request: call for service in services for request, call in service.puts.items()}
        self._exchanges = {request: call for service in services for request, call in service.exchanges.items()}
        listener = _listen(endpoint, make_credentials(token), self)
        self.host = endpoint.host  # as the others know it
        self.port: int = listener.port
        self.location = f"grpc+tls://{bracketed(self.host)}:{self.port}"
        self._close = weakref.finalize(self, _close, listener)

    def do_action(self, context: Any, action: flight.Action) -> list[bytes]:
        if action.type not in self._actions:
            raise pa.ArrowKeyError(f"unknown action {action.type[:40]!r}, expected one of {sorted(self._actions)}")
        request, call = self._actions[action.type]
        message = _message(request, action.body)
        with self._changed:
            answer = encode(call(message))
            self._changed.notify_all()
        return [answer]

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        _take(self._puts, descriptor, reader, writer)

    def do_exchange(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        _take(self._exchanges, descriptor, reader, writer)

    def connected_ports(self) -> set[int] | None:
        """Ports of callers that the kernel has connections with; None if it does not tell.

        A killed process loses its connections at once. One that is stopped, or whose host is cut off, keeps them.
        """
        peers, is_known = set(), False
        for table in _CONNECTIONS:
            with contextlib.suppress(OSError):
                for line in table.read_text().splitlines()[1:]:
                    local, remote, state = line.split()[1:4]
                    if state == _ESTABLISHED and _hex_port(local) == self.port:
                        peers.add(_hex_port(remote))
                is_known = True
        return peers if is_known else None

    @property
    def is_open(self) -> bool:
        return self._close.alive

    def close(self) -> None:
        """Stop listening, even if strangers hold connections open. It may be called twice."""
        self._close()


class _Listener(flight.FlightServerBase):
    """Passes calls on to a server. pyarrow never frees it, so it holds nothing else."""

    def __init__(self, location: str, credentials: Credentials, server: TransportServer):
        self._server = weakref.proxy(server)
        super().__init__(
            location,
            tls_certificates=[(credentials.certificate, credentials.key)],
            verify_client=True,
            root_certificates=credentials.authority,
        )

    def do_action(self, context: Any, action: flight.Action) -> list[bytes]:
        caller_port.set(_port_of(context.peer()))  # here: after the call, asking the context is a segmentation fault
        answer: list[bytes] = self._server.do_action(context, action)
        return answer

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        self._server.do_put(context, descriptor, reader, writer)

    def do_exchange(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        self._server.do_exchange(context, descriptor, reader, writer)

    def release(self) -> None:
        """Stop listening, wait for the calls that are being answered, and free what gRPC holds."""
        self.__exit__(None, None, None)
        # This object and its server in C++ hold each other for ever. One that never starts takes its place; as long
        # as gRPC has a server with TLS, a process takes 2 s to exit.
        with contextlib.suppress(pa.ArrowException):
            super().__init__("closed://nowhere:0")


def _hex_port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _port_of(peer: str) -> int:
    """The port of a peer as gRPC writes it, such as ``ipv4:10.0.0.2:41234``; 0 if it has none."""
    port = peer.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _listen(endpoint: Endpoint, credentials: Credentials, server: TransportServer) -> _Listener:
    problem = ""
    for port in endpoint.ports:
        try:
            _check_free(endpoint.bind, port)
            return _Listener(f"grpc+tls://{bracketed(endpoint.bind)}:{port}", credentials, server)
        except OSError as error:
            problem = str(error)
            if error.errno != errno.EADDRINUSE:
                break  # it is the same with all ports
        except pa.ArrowException as error:  # taken since
            problem = str(error)
    raise ClusterConfigError(f"{endpoint.origin}: {endpoint.described()} cannot be listened on: {problem}.")


def _close(listener: _Listener) -> None:
    thread = threading.Thread(target=listener.release, name="server shutdown", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down
        listener.release()
    else:
        thread.join(SERVER_CLOSE_SECONDS)


def _check_free(host: str, port: int) -> None:
    """Raise ``OSError`` if a port cannot be listened on; its text says more than that of gRPC."""
    for family, socket_type, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, socket_type) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            probe.bind(address)


def command(message: Any) -> flight.FlightDescriptor:
    """The descriptor of a stream that goes with a message."""
    return flight.FlightDescriptor.for_command(encode(message))


def _take(offered: Mapping[type[Any], Stream], descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
    message = _message(Union[tuple(offered)], descriptor.command)  # noqa: UP007
    offered[type(message)](message, reader, writer)


def _message(message_type: Any, content: Any) -> Any:
    """The message of a call. If it is malformed or too large, raises an error that Arrow Flight sends to the caller."""
    size = 0 if content is None else len(content)
    if size > MAX_MESSAGE_BYTES:
        raise pa.ArrowInvalid(f"the message has {size} bytes, expected at most {MAX_MESSAGE_BYTES}")
    try:
        return decode(message_type, bytes(content or b""))
    except MessageError as error:
        raise pa.ArrowInvalid(str(error)) from None
