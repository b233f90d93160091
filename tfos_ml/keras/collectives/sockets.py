"""Sums over workers, over a TCP connection between each pair of them.

TensorFlow's own operation passes a small tensor through several threads and remote calls on each side. This takes 2 to
9 ms, as long as the rest of a small model's step, where sockets need 0.5 ms (``benchmarks/all_reduce.py``). Here every
worker sends its share to all others and adds up the shares that it receives. Small arrays are sent whole, in one
exchange. Of a large array, each worker sums a part, and sends that sum to the others (Rabenseifner, "Optimization of
Collective Reduction Operations", ICCS 2004). Shares are added in the order of ranks, so that all workers, and all runs,
get the same bits.

Only the workers can send or change anything on these connections (:mod:`tfos_ml.keras.collectives.links`).
"""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfos_ml.common.limits import AWAKE_SECONDS
from tfos_ml.data.schema import Array
from tfos_ml.keras.collectives import links as connections
from tfos_ml.keras.collectives.links import Link

Buffers = Mapping[int, memoryview]  # by rank of the other worker

WHOLE_BYTES = 1 << 20  # arrays up to this size are sent whole, in one exchange
_LENGTH_BYTES = 8
OPERATIONS: dict[str, Callable[..., Any]] = {"Add": np.add, "Max": np.maximum}


class PeerLostError(Exception):
    """Another worker has ended."""


class SilentWorkerError(PeerLostError):
    """Another worker has sent nothing for too long."""


class PeerAllReduce:
    """Connections of one worker to all others, by rank; :meth:`close` ends them.

    Every worker must call the same methods in the same order. One call runs at a time, and waits `timeout` seconds for
    the others; it raises ``PeerLostError`` if one has ended, or does not take part in time.
    """

    def __init__(self, rank: int, links: Mapping[int, Link], timeout: float):
        self.rank = rank
        self.size = len(links) + 1
        self.failure: PeerLostError | None = None  # the first; all calls after it fail
        self._links = dict(links)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._received = np.empty(0, np.uint8)
        self._messages = np.zeros((self.size, _LENGTH_BYTES), np.uint8)

    @classmethod
    def connect(
        cls, rank: int, addresses: Sequence[str], secret: bytes, timeout: float, encrypts: bool = False
    ) -> PeerAllReduce:
        """Connect to all other workers, whose `addresses` are "host:port" by rank. Returns once all have called this.

        With `encrypts`, which must be the same on all workers, nobody else can read their messages. Raises
        ``SilentWorkerError`` if one of them cannot be reached within `timeout` seconds, and ``OSError`` if this
        worker's own port is taken.
        """
        try:
            links = connections.connect(rank, addresses, secret, time.monotonic() + timeout, encrypts)
        except TimeoutError as error:
            raise SilentWorkerError(f"no connection with the workers at {error} within {timeout:g} s") from None
        return cls(rank, links, timeout)

    def close(self) -> None:
        """End the connections."""
        for link in self._links.values():
            link.connection.close()

    def all_reduce(self, values: Array, operation: str = "Add") -> Array:
        """The sum ("Max": maximum) over all workers of arrays of one shape and dtype."""
        combine = OPERATIONS[operation]
        flat = np.ascontiguousarray(values).reshape(-1)
        with self._call():
            if flat.nbytes * (self.size - 1) <= WHOLE_BYTES:
                return self._reduce(flat, flat, combine).reshape(values.shape)
            return self._reduce_by_parts(flat, combine).reshape(values.shape)

    def all_gather(self, arrays: Sequence[Array]) -> list[Array]:
        """The bytes of the arrays of each worker, which the next call overwrites; workers may send different numbers.

        Messages of all workers have one size, and begin with the number of bytes that count. So there is one exchange,
        and a second one when a worker has more than any worker had before.
        """
        parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        length = sum(part.nbytes for part in parts)
        with self._call():
            while True:
                own = self._messages[self.rank]
                own[:_LENGTH_BYTES].view(np.int64)[0] = length
                if _LENGTH_BYTES + length <= len(own):
                    np.concatenate(parts, out=own[_LENGTH_BYTES : _LENGTH_BYTES + length])
                self._exchange(
                    dict.fromkeys(self._links, _bytes(own)),
                    {other: _bytes(self._messages[other]) for other in self._links},
                )
                ends = _LENGTH_BYTES + self._messages[:, :_LENGTH_BYTES].copy().view(np.int64)[:, 0]
                if ends.max() <= len(own):
                    return [message[_LENGTH_BYTES:end] for message, end in zip(self._messages, ends, strict=True)]
                self._messages = np.zeros((self.size, -(-int(ends.max()) * 65 // 512) * 8), np.uint8)  # and some more

    # Without the lock

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        with self._lock:
            if self.failure is not None:
                raise self.failure
            try:
                yield
            except PeerLostError as error:
                self.failure = error
                raise

    def _reduce(self, flat: Array, own: Array, combine: Callable[..., Any]) -> Array:
        """`own` combined with the arrays that all others send, while `flat` is sent to each of them."""
        received = self._buffers(own)
        sent = dict.fromkeys(self._links, _bytes(flat))
        self._exchange(sent, {other: _bytes(array) for other, array in received.items()})
        return self._combine(own, received, combine)

    def _reduce_by_parts(self, flat: Array, combine: Callable[..., Any]) -> Array:
        parts = np.array_split(flat, self.size)
        received = self._buffers(parts[self.rank])
        self._exchange(
            {other: _bytes(parts[other]) for other in self._links},
            {other: _bytes(array) for other, array in received.items()},
        )
        own = self._combine(parts[self.rank], received, combine)
        return self._gather(own, [len(part) for part in parts])

    def _combine(self, own: Array, received: Mapping[int, Array], combine: Callable[..., Any]) -> Array:
        shares = [own if rank == self.rank else received[rank] for rank in range(self.size)]
        result: Array = combine(shares[0], shares[1])
        for share in shares[2:]:
            combine(result, share, out=result)
        return result

    def _gather(self, own: Array, lengths: Sequence[int]) -> Array:
        result = np.empty((sum(lengths), *own.shape[1:]), own.dtype)
        places = np.split(result, np.cumsum(lengths)[:-1])
        places[self.rank][:] = own
        self._exchange(
            dict.fromkeys(self._links, _bytes(own)),
            {other: _bytes(places[other]) for other in self._links},
        )
        return result

    def _buffers(self, like: Array) -> dict[int, Array]:
        """An array of the same length for each other worker, in memory that is reused."""
        needed = like.nbytes * len(self._links)
        if needed > self._received.nbytes:
            self._received = np.empty(needed, np.uint8)
        arrays = self._received[:needed].view(like.dtype).reshape(len(self._links), -1)
        return dict(zip(self._links, arrays, strict=True))

    def _exchange(self, sent: Buffers, received: Buffers) -> None:
        """Send and receive at the same time: if two workers only sent, they would wait for each other."""
        began = time.monotonic()
        # Without polling, two workers on two cores trained a small network at 7.6k instead of 8.2k rows/s.
        awake, deadline = began + AWAKE_SECONDS, began + self._timeout
        with selectors.DefaultSelector() as selector:
            for other, link in self._links.items():
                link.begin(sent[other], received[other])
                if self._progress(other):
                    selector.register(link.connection, link.events, other)
            while selector.get_map():
                now = time.monotonic()
                ready = selector.select(0 if now < awake else max(0.0, deadline - now))
                if not ready and now >= awake:
                    silent = min(key.data for key in selector.get_map().values())
                    raise SilentWorkerError(
                        f"worker {silent} has sent nothing for feedTimeout={self._timeout:g} s. It hangs, or a step or "
                        "a callback takes longer there: then raise feedTimeout"
                    )
                for key, _ in ready:
                    if self._progress(key.data):
                        selector.modify(key.fileobj, self._links[key.data].events, key.data)
                    else:
                        selector.unregister(key.fileobj)

    def _progress(self, other: int) -> bool:
        try:
            return self._links[other].progress()
        except connections.AlteredMessageError as error:
            raise PeerLostError(f"the message of worker {other} is invalid: {error}") from None
        except OSError as error:
            raise PeerLostError(f"worker {other} has ended ({error})") from None


def _bytes(array: Array) -> memoryview:
    plain: Any = array.view(np.uint8).reshape(-1)
    return memoryview(plain)
