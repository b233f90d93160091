"""Authenticated connections between two workers that know the run's secret.

Both prove in a handshake that they know it, and derive a key for each direction. Every message carries a tag (AES-GCM)
that only they can compute and that includes the message's number: changed, missing or repeated messages are detected
before they are used. If Spark's own traffic is encrypted, the messages are too. Messages are numbers of a known size;
nothing is parsed.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tfos_ml.common.timeouts import GREETING_SECONDS, GUEST_SECONDS, LISTEN_RETRY_SECONDS
from tfos_ml.protocol.addresses import is_loopback

_BACKLOG = 128
_RANK = struct.Struct("!I")
_HASH_BYTES, _TAG_BYTES = 32, 16
_PIECE_BYTES = 1 << 30  # AES-GCM takes less than 2 GiB at a time
_NONCE = struct.Struct("!QI")  # of a message, and of a piece of it
_CALLER, _LISTENER = (b"caller", b"listener"), (b"listener", b"caller")

Keys: TypeAlias = tuple[bytes, bytes]  # of what this side sends, and of what it receives


class AlteredMessageError(OSError):
    """A received message differs from what the other worker has sent."""


class Link:
    """A connection with another worker. It sends and receives at the same time, one message after another each way.

    Both sides must know which messages come, and the size of each: nothing is sent but their bytes.
    """

    def __init__(self, connection: socket.socket, keys: Keys, encrypts: bool):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setblocking(False)
        self.connection = connection
        self._ours, self._theirs = map(AESGCM, keys)
        self._encrypts = encrypts
        self._sealed, self._opened = 0, 0  # messages so far
        self._to_send: list[memoryview] = []
        self._expected: deque[memoryview] = deque()  # where messages will be
        self._pieces: list[tuple[memoryview, bytearray]] = []  # of the first, with tags (encrypted: and content)
        self._missing: list[memoryview] = []  # of the first

    def send(self, message: memoryview) -> None:
        """Send a message after those before it, with :meth:`progress`; do not change it until then."""
        self._sealed += 1
        for number, piece in enumerate(_pieces(message)):
            nonce = _NONCE.pack(self._sealed, number)
            if self._encrypts:
                self._to_send.append(memoryview(self._ours.encrypt(nonce, piece, None)))
            else:
                self._to_send += [piece, memoryview(self._ours.encrypt(nonce, b"", piece))]

    def receive(self, message: memoryview) -> None:
        """Receive a message of this size after those before it, with :meth:`progress`."""
        self._expected.append(message)

    def progress(self) -> int:
        """Send and receive without waiting; returns how many messages have come. Raises ``OSError``."""
        with contextlib.suppress(BlockingIOError):
            while self._to_send:
                self._to_send = _after(self._to_send, self.connection.sendmsg(self._to_send))
        came = 0
        with contextlib.suppress(BlockingIOError):
            while self._expected:
                self._receive_first()
                came += 1
        return came

    def _receive_first(self) -> None:
        if not self._pieces:
            for piece in _pieces(self._expected[0]):
                sealed = bytearray(_TAG_BYTES + (len(piece) if self._encrypts else 0))
                self._pieces.append((piece, sealed))
                self._missing += [memoryview(sealed)] if self._encrypts else [piece, memoryview(sealed)]
        while self._missing:
            count = self.connection.recvmsg_into(self._missing)[0]
            if not count:
                raise ConnectionError("end of the stream")
            self._missing = _after(self._missing, count)
        self._open()
        self._expected.popleft()

    @property
    def events(self) -> int:
        """What to wait for; 0 if nothing is left to send or to receive."""
        return (selectors.EVENT_WRITE if self._to_send else 0) | (selectors.EVENT_READ if self._expected else 0)

    def _open(self) -> None:
        self._opened += 1
        try:
            for number, (piece, sealed) in enumerate(self._pieces):
                nonce = _NONCE.pack(self._opened, number)
                if self._encrypts:
                    piece[:] = self._theirs.decrypt(nonce, sealed, None)
                else:
                    self._theirs.decrypt(nonce, sealed, piece)
        except InvalidTag:
            raise AlteredMessageError("it was altered on its way") from None
        self._pieces = []


def _pieces(buffer: memoryview) -> list[memoryview]:
    return [buffer[i : i + _PIECE_BYTES] for i in range(0, len(buffer) or 1, _PIECE_BYTES)]


def _after(buffers: list[memoryview], count: int) -> list[memoryview]:
    """The rest of some buffers after `count` bytes."""
    while buffers and count >= len(buffers[0]):
        count -= len(buffers[0])
        buffers = buffers[1:]
    return [buffers[0][count:], *buffers[1:]] if count else buffers


def connect(rank: int, addresses: Sequence[str], secret: bytes, deadline: float, encrypts: bool) -> dict[int, Link]:
    """Links with all other workers, by rank. Connects to workers of lower ranks; those of higher ranks connect to this.

    Raises ``TimeoutError``, with the addresses of the missing ones, if not all are connected at the deadline, and
    ``OSError`` if this worker's own port is taken.
    """
    links: dict[int, Link] = {}
    try:
        with _listen(_split(addresses[rank])) as listener:
            for other in range(rank):
                links[other] = _call(rank, _split(addresses[other]), secret, deadline, encrypts)
            while len(links) < len(addresses) - 1:
                connection, other, keys = _answer(listener, rank, secret, deadline)
                if rank < other < len(addresses) and other not in links:
                    links[other] = Link(connection, keys, encrypts)
                else:
                    connection.close()
    except BaseException as error:
        for link in links.values():
            link.connection.close()
        if isinstance(error, TimeoutError):
            missing = [address for n, address in enumerate(addresses) if n != rank and n not in links]
            raise TimeoutError(", ".join(missing)) from None
        raise
    return links


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(address: tuple[str, int]) -> socket.socket:
    """Listen on the node's address; on all addresses if it is not this host's own, for instance behind NAT."""
    host, port = address
    try:
        family, *_, own = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if is_loopback(str(own[0])) and not is_loopback(host):  # others resolve this host's name differently
            raise OSError(errno.EADDRNOTAVAIL, host)
        return socket.create_server(own[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        if not isinstance(error, socket.gaierror) and error.errno != errno.EADDRNOTAVAIL:
            raise
    is_dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=is_dual, backlog=_BACKLOG)


def _answer(listener: socket.socket, rank: int, secret: bytes, deadline: float) -> tuple[socket.socket, int, Keys]:
    """The next caller that knows the secret, its rank and the keys; raises ``TimeoutError``.

    Callers are answered one after another. A stranger that says nothing is sent away before those behind it give up.
    """
    while True:
        listener.settimeout(_left(deadline))
        with contextlib.suppress(OSError):  # of a caller that has gone
            connection, _ = listener.accept()
            try:
                until = min(deadline, time.monotonic() + GUEST_SECONDS)
                return connection, *_greet(connection, rank, secret, _LISTENER, until)
            except OSError:  # a stranger
                connection.close()


def _call(rank: int, address: tuple[str, int], secret: bytes, deadline: float, encrypts: bool) -> Link:
    """A link with a worker that listens, or soon will."""
    while True:
        connection = None
        try:
            connection = socket.create_connection(address, timeout=_left(deadline))
            until = min(deadline, time.monotonic() + GREETING_SECONDS)
            return Link(connection, _greet(connection, rank, secret, _CALLER, until)[1], encrypts)
        except OSError:  # not there yet, or still another's port
            if connection is not None:
                connection.close()
            _left(deadline)
            time.sleep(LISTEN_RETRY_SECONDS)


def _greet(
    connection: socket.socket, rank: int, secret: bytes, roles: tuple[bytes, bytes], deadline: float
) -> tuple[int, Keys]:
    """Shake hands; returns the other's rank, and the keys.

    Each side sends its rank with a random number, and then a keyed hash of its role and of both messages. Raises
    ``OSError`` if the other side does not know the secret, or is not heard of in time.
    """
    mine = _RANK.pack(rank) + os.urandom(_HASH_BYTES)
    theirs = _swapped(connection, mine, deadline)
    ways = (roles[0] + mine + theirs, roles[1] + theirs + mine)
    proofs = [hmac.digest(secret, way, "sha256") for way in ways]
    if not hmac.compare_digest(_swapped(connection, proofs[0], deadline), proofs[1]):
        raise PermissionError("the other side does not know the secret")
    ours, others = (hmac.digest(secret, b"key of the " + way, "sha256") for way in ways)
    return _RANK.unpack_from(theirs)[0], (ours, others)


def _swapped(connection: socket.socket, message: bytes, deadline: float) -> bytes:
    """Send a message; returns one of the same length that the other side has sent."""
    connection.settimeout(_left(deadline))
    connection.sendall(message)
    received = b""
    while len(received) < len(message):
        connection.settimeout(_left(deadline))
        more = connection.recv(len(message) - len(received))
        if not more:
            raise ConnectionError("end of the stream")
        received += more
    return received


def _left(deadline: float) -> float:
    """Seconds until then; raises ``TimeoutError`` if there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("not all workers are there")
    return seconds
