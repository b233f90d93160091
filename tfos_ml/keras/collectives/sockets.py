"""Sums over workers, over a TCP connection between each pair of them.

TensorFlow's own operation passes a small tensor through several threads and remote calls on each side. This takes 2 to
9 ms, as long as the rest of a small model's step, where sockets need 0.5 ms (``benchmarks/all_reduce.py``). Here every
worker sends its share to all others and adds up the shares that it receives. Small arrays are sent whole, in one
exchange. Of a large array, each worker sums a part, and sends that sum to the others (Rabenseifner, "Optimization of
Collective Reduction Operations", ICCS 2004). It is cut into segments, so that the wire is busy while a worker adds up.
Shares are added in the order of ranks, so that all workers, and all runs, get the same bits.

Only the workers can send or change anything on these connections (:mod:`tfos_ml.keras.collectives.links`).
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfos_ml.common.timeouts import AWAKE_SECONDS
from tfos_ml.data.schema import Array
from tfos_ml.keras.collectives import links as connections
from tfos_ml.keras.collectives import segmented_sum
from tfos_ml.keras.collectives.links import Link
from tfos_ml.keras.collectives.segmented_sum import SegmentedSum, as_bytes, combined

Buffers = Mapping[int, memoryview]  # by rank of the other worker

WHOLE_BYTES = 1 << 20  # arrays up to this size are sent whole, in one exchange
ALIGNMENT = 64  # bytes: TensorFlow copies arrays that begin elsewhere
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
        self._links = dict(sorted(links.items()))
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
        flat = aligned(values.size, values.dtype)
        flat.reshape(values.shape)[...] = values
        self.all_reduce_in_place(flat, operation)
        return flat.reshape(values.shape)

    def all_reduce_in_place(self, flat: Array, operation: str = "Add") -> None:
        """Combine a flat array with those of all other workers, in place; see :meth:`all_reduce`."""
        combine = OPERATIONS[operation]
        with self._call():
            is_small = flat.nbytes * (self.size - 1) <= WHOLE_BYTES
            reduce = self._reduce if is_small else self._reduce_by_segments
            reduce(flat, combine)

    def all_sum_weighted(self, weight: Array, *parts: Array) -> list[Array]:
        """The sums over all workers of `weight` times each array, all of one dtype; zeros if all weights are zero.

        The sums lie in one array, each aligned so that TensorFlow can use it without a copy.
        """
        step = ALIGNMENT // weight.itemsize
        ends = np.cumsum([-(-part.size // step) * step for part in parts]).tolist()
        flat = aligned(ends[-1], weight.dtype)
        sums = []
        for part, begin, end in zip(parts, [0, *ends], ends, strict=False):
            total = flat[begin : begin + part.size].reshape(part.shape)
            if weight == 0:
                total[...] = 0  # also of numbers that are not finite
            else:
                np.multiply(part, weight, out=total)
            flat[begin + part.size : end] = 0
            sums.append(total)
        self.all_reduce_in_place(flat)
        return sums

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
                    dict.fromkeys(self._links, as_bytes(own)),
                    {other: as_bytes(self._messages[other]) for other in self._links},
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

    def _reduce(self, flat: Array, combine: Callable[..., Any]) -> None:
        """Combine `flat` with the arrays that all others send, while `flat` is sent to each of them."""
        received = self._buffers((len(self._links), len(flat)), flat.dtype)
        self._exchange(
            dict.fromkeys(self._links, as_bytes(flat)),
            {other: as_bytes(array) for other, array in zip(self._links, received, strict=True)},
        )
        shares = [*received[: self.rank], flat, *received[self.rank :]]
        combined(shares, flat, combine)

    def _reduce_by_segments(self, flat: Array, combine: Callable[..., Any]) -> None:
        shape = segmented_sum.buffers_shape(flat, self.size)
        total = SegmentedSum(self.rank, self._links, flat, combine, self._buffers(shape, flat.dtype))
        self._run(total.came)

    def _buffers(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array for what others send, in memory that is reused."""
        needed = math.prod(shape) * np.dtype(dtype).itemsize
        if needed > self._received.nbytes:
            self._received = np.empty(needed, np.uint8)
        return self._received[:needed].view(dtype).reshape(shape)

    def _exchange(self, sent: Buffers, received: Buffers) -> None:
        """Send a message to each other worker, and receive one from each."""
        for other, link in self._links.items():
            link.send(sent[other])
            link.receive(received[other])
        self._run(lambda other: False)

    def _run(self, came: Callable[[int], bool]) -> None:
        """Send and receive all messages, at the same time: if two workers only sent, they would wait for each other.

        `came` is called with the rank of the worker whose message has come; it returns whether it has added messages.
        """
        awake = time.monotonic() + AWAKE_SECONDS
        deadline = time.monotonic() + self._timeout
        to_try = set(self._links)
        with selectors.DefaultSelector() as selector:
            while True:
                while to_try:
                    other = to_try.pop()
                    for _ in range(self._progress(other)):
                        if came(other):
                            to_try.update(self._links)
                    _watch(selector, self._links[other], other)
                if not selector.get_map():
                    return
                to_try = {key.data for key, _ in selector.select(_patience(awake, deadline))}
                if to_try:
                    deadline = time.monotonic() + self._timeout
                elif time.monotonic() >= deadline:
                    silent = min(key.data for key in selector.get_map().values())
                    raise SilentWorkerError(
                        f"worker {silent} has sent nothing for feedTimeout={self._timeout:g} s. It hangs, or a step or "
                        "a callback takes longer there: then raise feedTimeout"
                    )

    def _progress(self, other: int) -> int:
        try:
            return self._links[other].progress()
        except connections.AlteredMessageError as error:
            raise PeerLostError(f"the message of worker {other} is invalid: {error}") from None
        except OSError as error:
            raise PeerLostError(f"worker {other} has ended ({error})") from None


def _watch(selector: selectors.BaseSelector, link: Link, other: int) -> None:
    """Wait for what a link waits for now."""
    known = selector.get_map().get(link.connection)
    if known is None:
        if link.events:
            selector.register(link.connection, link.events, other)
    elif not link.events:
        selector.unregister(link.connection)
    elif known.events != link.events:
        selector.modify(link.connection, link.events, other)


def _patience(awake: float, deadline: float) -> float:
    """Seconds to wait for bytes; first none, since sleeping costs a small network a tenth of its speed."""
    now = time.monotonic()
    if now < awake:
        os.sched_yield()  # to a worker on the same core
        return 0.0
    return max(0.0, deadline - now)


def aligned(size: int, dtype: Any) -> Array:
    """An array of so many numbers, whose memory TensorFlow can use."""
    memory = np.empty(size * np.dtype(dtype).itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : len(memory) - ALIGNMENT + start].view(dtype)
