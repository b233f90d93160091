"""A sum of large arrays over workers, in segments, so that the wire is busy while a worker adds up.

Every worker adds up one part of each segment. So it sends to each other worker the share of that worker's part, and
receives the shares of its own part; then all send the sums to each other. Shares of ``AHEAD`` segments are under way at
a time: when a segment has been added up, its sum follows, and then the shares of a later segment.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfos_ml.data.schema import Array
from tfos_ml.keras.collectives.links import Link

SEGMENT_BYTES = 1 << 21
AHEAD = 4  # segments whose shares are under way at a time


def buffers_shape(flat: Array, size: int) -> tuple[int, int, int]:
    """Of the array for the shares that others send: workers, segments, and numbers of a share."""
    return size - 1, AHEAD, -(-min(_rows(flat), len(flat)) // size)


class SegmentedSum:
    """Sums `flat` over all workers, in place; it is done once all messages have come.

    `buffers` have the shape of :func:`buffers_shape`. The sum of another worker's part is received where this worker's
    share of it was: the other worker sends it only after it has received the share.
    """

    def __init__(
        self, rank: int, links: Mapping[int, Link], flat: Array, combine: Callable[..., Any], buffers: Array
    ) -> None:
        self._rank, self._links, self._combine = rank, links, combine
        self._shares = _segments(flat, len(links) + 1)
        self._buffers = dict(zip(links, buffers, strict=True))
        self._expected: dict[int, deque[int | None]] = {other: deque() for other in links}  # segments; None: a sum
        self._shares_of: Counter[int] = Counter()  # that have come, by segment
        for segment in range(min(AHEAD, len(self._shares))):
            self._begin(segment)

    def _begin(self, segment: int) -> None:
        """Send this worker's shares of a segment, and receive those of the others."""
        for other, link in self._links.items():
            link.send(as_bytes(self._shares[segment][other]))
            link.receive(as_bytes(self._received(other, segment)))
            self._expected[other].append(segment)

    def _received(self, other: int, segment: int) -> Array:
        received: Array = self._buffers[other][segment % AHEAD][: len(self._shares[segment][self._rank])]
        return received

    def came(self, other: int) -> bool:
        """Take note of a message; returns whether messages to send or to receive have been added."""
        segment = self._expected[other].popleft()
        if segment is None:
            return False
        self._shares_of[segment] += 1
        if self._shares_of[segment] < len(self._links):
            return False
        self._add_up(segment)
        if segment + AHEAD < len(self._shares):
            self._begin(segment + AHEAD)
        return True

    def _add_up(self, segment: int) -> None:
        """Add up this worker's part of a segment, and exchange the sums with the others."""
        mine, size = self._rank, len(self._links) + 1
        shares = [self._shares[segment][r] if r == mine else self._received(r, segment) for r in range(size)]
        total = combined(shares, self._shares[segment][mine], self._combine)
        for other, link in self._links.items():
            link.send(as_bytes(total))
            link.receive(as_bytes(self._shares[segment][other]))
            self._expected[other].append(None)


def combined(shares: Sequence[Array], out: Array, combine: Callable[..., Any]) -> Array:
    """Arrays of two or more workers combined in the order of ranks, in `out`, which may be one of them.

    Overwrites the first.
    """
    for share in shares[1:-1]:
        combine(shares[0], share, out=shares[0])
    combine(shares[0], shares[-1], out=out)
    return out


def as_bytes(array: Array) -> memoryview:
    """The memory of an array."""
    plain: Any = array.view(np.uint8).reshape(-1)
    return memoryview(plain)


def _rows(flat: Array) -> int:
    return max(1, SEGMENT_BYTES // flat.itemsize)


def _segments(flat: Array, size: int) -> list[list[Array]]:
    """The segments of an array, each as the parts that workers add up."""
    rows = _rows(flat)
    return [np.array_split(flat[i : i + rows], size) for i in range(0, len(flat), rows)]
