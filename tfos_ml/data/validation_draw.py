"""Draws the validation rows of ``validationSplit`` by row id and seed, with the same result in Spark and on nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfos_ml.data.row_order import Int64s, UInt64s

if TYPE_CHECKING:
    from pyspark.sql import Column

_BITS = 53
_SPARK_SEED = 42  # of xxhash64
_PRIMES = tuple(
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)


@dataclass(frozen=True)
class ValidationDraw:
    """Draws a fraction of the rows."""

    fraction: float
    seed: int

    @property
    def _limit(self) -> int:
        return math.ceil(self.fraction * 2**_BITS)

    def column(self) -> Column:
        """An expression: whether a row is drawn, in Spark."""
        from pyspark.sql import functions as F

        draw = F.xxhash64(F.monotonically_increasing_id(), F.lit(self.seed))
        return F.shiftrightunsigned(draw, 64 - _BITS) < F.lit(self._limit)

    def of(self, row_ids: Int64s) -> np.ndarray[Any, np.dtype[np.bool_]]:
        start = np.full(len(row_ids), _SPARK_SEED, np.uint64)
        hashed = _hash_long(row_ids.astype(np.uint64), start)
        seed = np.full(1, self.seed & (2**64 - 1), np.uint64)
        is_int = -(2**31) <= self.seed < 2**31  # as Python's numbers become Spark's literals
        draw = _hash_int(seed, hashed) if is_int else _hash_long(seed, hashed)
        return (draw >> np.uint64(64 - _BITS)) < np.uint64(self._limit)


# XXH64 of 4 and of 8 bytes: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md


def _hash_int(value: UInt64s, seed: UInt64s) -> UInt64s:
    p1, p2, p3, _, p5 = _PRIMES
    mixed = (seed + p5 + np.uint64(4)) ^ ((value & np.uint64(0xFFFFFFFF)) * p1)
    return _finished(_rotated(mixed, 23) * p2 + p3)


def _hash_long(value: UInt64s, seed: UInt64s) -> UInt64s:
    p1, p2, _, p4, p5 = _PRIMES
    mixed = (seed + p5 + np.uint64(8)) ^ (_rotated(value * p2, 31) * p1)
    return _finished(_rotated(mixed, 27) * p1 + p4)


def _finished(mixed: UInt64s) -> UInt64s:
    _, p2, p3, *_ = _PRIMES
    mixed = (mixed ^ (mixed >> np.uint64(33))) * p2
    mixed = (mixed ^ (mixed >> np.uint64(29))) * p3
    return mixed ^ (mixed >> np.uint64(32))


def _rotated(value: UInt64s, bits: int) -> UInt64s:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))
