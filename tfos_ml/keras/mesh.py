"""Sums over workers, through a TCP connection between each two of them.

TensorFlow's own operation passes a small tensor through several threads and remote calls on each side, 2 to 9 ms where
bare sockets need 0.5 (``benchmarks/all_reduce.py``): as long as the rest of a small model's step. Here every worker
sends its share to all others and adds up what it gets. Small arrays go whole, in one exchange; of large ones each
worker sums a part, and sends the others that sum (Rabenseifner, "Optimization of Collective Reduction Operations",
ICCS 2004). Shares are added in the order of ranks, so that all workers, and all runs, have the same bits.

Both sides of a connection prove that they know the run's secret; then only numbers of a known size pass, nothing that
would be parsed.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Buffers = Mapping[int, memoryview]  # by rank of the other worker

WHOLE_BYTES = 1 << 20  # up to which what a worker sends goes in one exchange
# That a worker looks for what others send before it sleeps. Two on two cores that slept at once trained a small network
# at 7.6k rows/s, beside 8.2k.
AWAKE_SECONDS = 0.005
_GREETING_SECONDS = 20.0  # for a proof; who sends none holds others up so long
_RETRY_SECONDS = 0.05  # until the other side listens
_RANK = struct.Struct("!I")
_HASH_BYTES = 32
_CALLER, _LISTENER = (b"caller", b"listener"), (b"listener", b"caller")
OPERATIONS: dict[str, Callable[..., Any]] = {"Add": np.add, "Max": np.maximum}


class BrokenMeshError(Exception):
    """Another worker has ended."""


class SilentWorkerError(BrokenMeshError):
    """Another worker has sent nothing for too long."""


class Mesh:
    """Connections of one worker to all others; :meth:`close` ends them.

    Every worker must call the same methods in the same order. One call runs at a time.

    Parameters
    ----------
    rank : int
        Of this worker.
    connections : mapping of int to socket.socket
        To all others, by rank.
    timeout : float
        Seconds that a call waits for the others.
    """

    def __init__(self, rank: int, connections: Mapping[int, socket.socket], timeout: float):
        self.rank = rank
        self.size = len(connections) + 1
        self.failure: BrokenMeshError | None = None  # the first; all calls after it fail
        self._connections = dict(connections)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._received = np.empty(0, np.uint8)
        for connection in self._connections.values():
            connection.setblocking(False)

    @classmethod
    def connect(cls, rank: int, addresses: Sequence[str], secret: bytes, timeout: float) -> Mesh:
        """Connect to all other workers, whose addresses are given by rank as "host:port"; once all have called it.

        Raises
        ------
        SilentWorkerError
            If one of them cannot be reached within `timeout` seconds.
        OSError
            If this worker's own port is taken.
        """
        deadline = time.monotonic() + timeout
        connections: dict[int, socket.socket] = {}
        try:
            with _listen(_split(addresses[rank])[1], len(addresses)) as listener:
                for other in range(rank):
                    connections[other] = _call(rank, _split(addresses[other]), secret, deadline)
                while len(connections) < len(addresses) - 1:
                    other, connection = _accept(listener, rank, secret, deadline)
                    if rank < other < len(addresses) and other not in connections:
                        connections[other] = connection
                    else:
                        connection.close()
        except BaseException as error:
            for connection in connections.values():
                connection.close()
            if isinstance(error, TimeoutError):
                missing = [address for n, address in enumerate(addresses) if n != rank and n not in connections]
                raise SilentWorkerError(
                    f"no connection with the workers at {', '.join(missing)} within {timeout:g} s"
                ) from None
            raise
        return cls(rank, connections, timeout)

    def close(self) -> None:
        """End the connections."""
        for connection in self._connections.values():
            connection.close()

    def all_reduce(self, values: Array, operation: str = "Add") -> Array:
        """The sum ("Max": maximum) over all workers of arrays of one shape and dtype.

        Raises
        ------
        BrokenMeshError
            If another worker has ended, or does not take part in time.
        """
        combine = OPERATIONS[operation]
        flat = np.ascontiguousarray(values).reshape(-1)
        with self._call():
            if flat.nbytes * (self.size - 1) <= WHOLE_BYTES:
                return self._reduce(flat, flat, combine).reshape(values.shape)
            return self._reduce_by_parts(flat, combine).reshape(values.shape)

    def all_gather(self, values: Array) -> Array:
        """Arrays of all workers, which differ in their first dimension at most, one after another.

        Raises
        ------
        BrokenMeshError
            As for :meth:`all_reduce`.
        """
        values = np.ascontiguousarray(values)
        with self._call():
            lengths = self._gather(np.array([len(values)]), [1] * self.size)
            return self._gather(values, [int(length) for length in lengths])

    # Without the lock

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        with self._lock:
            if self.failure is not None:
                raise self.failure
            try:
                yield
            except BrokenMeshError as error:
                self.failure = error
                raise

    def _reduce(self, flat: Array, own: Array, combine: Callable[..., Any]) -> Array:
        """`own` combined with what all others send of it, where `flat` is sent to each of them."""
        received = self._room(own)
        sent = dict.fromkeys(self._connections, _bytes(flat))
        self._exchange(sent, {other: _bytes(array) for other, array in received.items()})
        return self._combine(own, received, combine)

    def _reduce_by_parts(self, flat: Array, combine: Callable[..., Any]) -> Array:
        parts = np.array_split(flat, self.size)
        received = self._room(parts[self.rank])
        self._exchange(
            {other: _bytes(parts[other]) for other in self._connections},
            {other: _bytes(array) for other, array in received.items()},
        )
        mine = self._combine(parts[self.rank], received, combine)
        return self._gather(mine, [len(part) for part in parts])

    def _combine(self, own: Array, received: Mapping[int, Array], combine: Callable[..., Any]) -> Array:
        shares = [own if rank == self.rank else received[rank] for rank in range(self.size)]
        result: Array = combine(shares[0], shares[1])
        for share in shares[2:]:
            combine(result, share, out=result)
        return result

    def _gather(self, mine: Array, lengths: Sequence[int]) -> Array:
        result = np.empty((sum(lengths), *mine.shape[1:]), mine.dtype)
        places = np.split(result, np.cumsum(lengths)[:-1])
        places[self.rank][:] = mine
        self._exchange(
            dict.fromkeys(self._connections, _bytes(mine)),
            {other: _bytes(places[other]) for other in self._connections},
        )
        return result

    def _room(self, like: Array) -> dict[int, Array]:
        """An array of the same length for each other worker, in memory that is used again."""
        needed = like.nbytes * len(self._connections)
        if needed > self._received.nbytes:
            self._received = np.empty(needed, np.uint8)
        arrays = self._received[:needed].view(like.dtype).reshape(len(self._connections), -1)
        return dict(zip(self._connections, arrays, strict=True))

    def _exchange(self, sent: Buffers, received: Buffers) -> None:
        """Send and fill the buffers, both ways at once: two that only sent would wait for each other."""
        began = time.monotonic()
        awake, deadline = began + AWAKE_SECONDS, began + self._timeout
        left = {other: [sent[other], received[other]] for other in self._connections}
        with selectors.DefaultSelector() as selector:
            for other, connection in self._connections.items():
                if self._progress(other, left[other]):
                    selector.register(connection, _events(left[other]), other)
            while selector.get_map():
                now = time.monotonic()
                ready = selector.select(0 if now < awake else max(0.0, deadline - now))
                if not ready and now >= awake:
                    raise SilentWorkerError(
                        f"worker {min(key.data for key in selector.get_map().values())} has sent nothing for "
                        f"{self._timeout:g} s"
                    )
                for key, _ in ready:
                    if self._progress(key.data, left[key.data]):
                        selector.modify(key.fileobj, _events(left[key.data]), key.data)
                    else:
                        selector.unregister(key.fileobj)

    def _progress(self, other: int, buffers: list[memoryview]) -> bool:
        """Send to a worker, and receive from it, what goes at once; whether something is left."""
        connection = self._connections[other]
        try:
            with contextlib.suppress(BlockingIOError):
                while buffers[0]:
                    buffers[0] = buffers[0][connection.send(buffers[0]) :]
            with contextlib.suppress(BlockingIOError):
                while buffers[1]:
                    count = connection.recv_into(buffers[1])
                    if not count:
                        raise ConnectionError("end of the stream")
                    buffers[1] = buffers[1][count:]
        except OSError as error:
            raise BrokenMeshError(f"worker {other} has ended ({error})") from None
        return bool(buffers[0] or buffers[1])


def _bytes(array: Array) -> memoryview:
    plain: Any = array.view(np.uint8).reshape(-1)
    return memoryview(plain)


def _events(buffers: Sequence[memoryview]) -> int:
    return (selectors.EVENT_WRITE if buffers[0] else 0) | (selectors.EVENT_READ if buffers[1] else 0)


# Connecting


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(port: int, backlog: int) -> socket.socket:
    """On all addresses of this host, as TensorFlow's server does."""
    is_dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=is_dual, backlog=backlog)


def _accept(listener: socket.socket, rank: int, secret: bytes, deadline: float) -> tuple[int, socket.socket]:
    """The next worker that calls, and its rank."""
    while True:
        listener.settimeout(_left(deadline))
        connection, _ = listener.accept()
        try:
            other = _greet(connection, rank, secret, _LISTENER, min(deadline, time.monotonic() + _GREETING_SECONDS))
            return other, _tuned(connection)
        except OSError:
            connection.close()  # a stranger


def _call(rank: int, address: tuple[str, int], secret: bytes, deadline: float) -> socket.socket:
    """A connection to a worker that listens, or soon will."""
    while True:
        connection = None
        try:
            connection = socket.create_connection(address, timeout=_left(deadline))
            _greet(connection, rank, secret, _CALLER, min(deadline, time.monotonic() + _GREETING_SECONDS))
            return _tuned(connection)
        except OSError:  # not there yet, or still another's port
            if connection is not None:
                connection.close()
            _left(deadline)
            time.sleep(_RETRY_SECONDS)


def _greet(connection: socket.socket, rank: int, secret: bytes, roles: tuple[bytes, bytes], deadline: float) -> int:
    """Prove to the other side that this one knows the secret, and have it prove the same; returns its rank.

    Each sends its rank with a random number, and then a keyed hash of its role and of both messages.

    Raises
    ------
    OSError
        If the other side does not know the secret, or does not say so in time.
    """
    mine = _RANK.pack(rank) + os.urandom(_HASH_BYTES)
    theirs = _swap(connection, mine, deadline)
    proofs = [hmac.digest(secret, role + first + second, "sha256") for role, first, second in
              ((roles[0], mine, theirs), (roles[1], theirs, mine))]  # fmt: skip
    if not hmac.compare_digest(_swap(connection, proofs[0], deadline), proofs[1]):
        raise PermissionError("the other side does not know the secret")
    other: int = _RANK.unpack_from(theirs)[0]
    return other


def _swap(connection: socket.socket, message: bytes, deadline: float) -> bytes:
    """Send a short message, and receive one of the same length."""
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


def _tuned(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connection


def _left(deadline: float) -> float:
    """Seconds until then; raises ``TimeoutError`` if there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("not all workers are there")
    return seconds
