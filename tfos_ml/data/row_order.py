"""Determines which row is trained when, with pure functions that have the same result on every node.

Before the shuffle each row gets an id, ``source partition << 33 | position in it``
(``monotonically_increasing_id``). When all rows have arrived, the nodes exchange how many
rows they have of each source partition; from that alone each node knows the *global index*
of each of its rows, and all agree on the number of steps.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfos_ml.common.session_settings import SHUFFLE_MEMORY
from tfos_ml.errors import EmptyDataError

if TYPE_CHECKING:
    from pyspark.sql import Column

_MAX_COUNTS_BYTES = 16 << 20
SHUFFLE_BLOCK_BYTES = 2 << 20
SHUFFLE_WINDOW_BLOCKS = 24

Int64s = np.ndarray[Any, np.dtype[np.int64]]
UInt64s = np.ndarray[Any, np.dtype[np.uint64]]

PARTITION_SHIFT = 33  # of Spark's monotonically_increasing_id


def round_robin_number(row: Column) -> Column:
    """The number that decides, modulo their count, which node or snapshot bucket gets a row.

    It starts at the number of the source partition, so that the rows of many small partitions are spread too.
    """
    from pyspark.sql import functions as F

    return F.shiftright(row, PARTITION_SHIFT) + row.bitwiseAND(F.lit((1 << PARTITION_SHIFT) - 1))


def rank_of_row(row: Column, ranks: Sequence[int]) -> Column:
    """The rank of the node, one of `ranks`, that gets the row with a given row id."""
    from pyspark.sql import functions as F

    position = F.pmod(round_robin_number(row), F.lit(len(ranks))).cast("int")
    return F.element_at(F.array(*map(F.lit, ranks)), position + 1)


def partition_counts(row_ids: Int64s) -> Int64s:
    """Rows by source partition, shape ``(largest partition + 1,)``."""
    return np.bincount(row_ids >> PARTITION_SHIFT).astype(np.int64)


def pack_counts(counts: Int64s) -> str:
    """Counts as short text, for JSON."""
    return base64.b64encode(zlib.compress(counts.astype("<i8").tobytes())).decode()


def unpack_counts(text: str) -> Int64s:
    """The counts that :func:`pack_counts` packed; raises ``ValueError`` for other texts."""
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(base64.b64decode(text), _MAX_COUNTS_BYTES)
    except zlib.error as error:
        raise ValueError(f"the counts are damaged: {error}") from None
    if not unpacking.eof:
        raise ValueError("the counts are incomplete, or too many")
    return np.frombuffer(content, dtype="<i8")


def total_counts(counts: Sequence[Int64s]) -> Int64s:
    """Rows by source partition over all nodes."""
    total = np.zeros(max(map(len, counts), default=0), dtype=np.int64)
    for part in counts:
        total[: len(part)] += part
    return total


def global_indices(row_ids: Int64s, totals: Int64s) -> Int64s:
    """Index of each row in the whole DataFrame, given the rows of each source partition."""
    offsets = np.concatenate([[0], np.cumsum(totals)[:-1]]).astype(np.int64)
    position = row_ids & ((1 << PARTITION_SHIFT) - 1)
    return offsets[row_ids >> PARTITION_SHIFT] + position


def shuffle_block(rows: int, size: int, limit: int = SHUFFLE_MEMORY.default) -> int | None:
    """Rows of one block of a block shuffle; None if rows of `size` bytes are within the `limit`: all are permuted.

    Rows, bytes and limit are those of all nodes, so that the result is the same on all of them, for any number.

    >>> shuffle_block(rows=100, size=800, limit=1000) is None
    True
    >>> shuffle_block(rows=2**20, size=2**30, limit=2**20)
    2048
    """
    return None if size <= limit else max(1, SHUFFLE_BLOCK_BYTES * rows // size)


def shuffled(indices: Int64s, total: int, seed: int, epoch: int, block: int | None = None) -> Int64s:
    """The place of each of some distinct indices in the shuffled order of ``range(total)``.

    Without `block`, that is a permutation of all. Otherwise blocks of that many consecutive indices are permuted, then
    the rows of each window of ``SHUFFLE_WINDOW_BLOCKS`` blocks. The place of an index depends only on seed, epoch,
    total and block, not on the other given indices.
    """
    if block is None or not len(indices):
        return permute(indices, total, seed, epoch)
    return _shuffled_blocks(indices, total, seed, epoch, block)


def window_edges(places: Int64s, block: int | None) -> Int64s:
    """Numbers of the rows with which windows of a block shuffle begin, given places in ascending order."""
    if block is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.diff(places // (SHUFFLE_WINDOW_BLOCKS * block))) + 1


def _shuffled_blocks(indices: Int64s, total: int, seed: int, epoch: int, block: int) -> Int64s:
    blocks = -(-total // block)
    order = permute(np.arange(blocks), blocks, seed, epoch)
    place = order[indices // block]
    places = place * block + indices % block
    places[place > order[-1]] -= blocks * block - total  # the last block, wherever it has gone, may be shorter
    length = SHUFFLE_WINDOW_BLOCKS * block
    window = places // length
    by_window = np.argsort(window, kind="stable")
    numbers, firsts = np.unique(window[by_window], return_index=True)
    for number, group in zip(numbers.tolist(), np.split(by_window, firsts[1:]), strict=True):
        first = number * length
        rows = min(length, total - first)
        places[group] = first + permute(places[group] - first, rows, seed, epoch, number + 1)
    return places


def permute(indices: Int64s, total: int, seed: int, epoch: int, *more: int) -> Int64s:
    """Where a seeded permutation of ``range(total)`` sends each of some distinct indices, without listing it.

    A Feistel network over the next power of four, walked until it falls into the range (Black and Rogaway 2002,
    "Ciphers with Arbitrary Finite Domains", https://doi.org/10.1007/3-540-45760-7_9): every node finds the place of its
    own rows in one shuffle of all rows, whatever the number of nodes. Seed, epoch and `more` select the permutation.
    """
    half_bits = max(1, ((total - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence([seed & (2**64 - 1), epoch, *more]).generate_state(4, np.uint64).astype(np.uint64)
    places = _feistel(indices.astype(np.uint64), half_bits, keys)
    outside = places >= total
    while outside.any():
        places[outside] = _feistel(places[outside], half_bits, keys)
        outside = places >= total
    return places.astype(np.int64)


def _feistel(values: UInt64s, half_bits: int, keys: UInt64s) -> UInt64s:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(values: UInt64s) -> UInt64s:
    """The finalizer of splitmix64 (https://prng.di.unimi.it/splitmix64.c)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def agree_steps(rows: dict[str, int], batch_size: int, drop_remainder: bool) -> int:
    """Number of batches of `batch_size` rows that every worker makes, given the rows of each.

    With `drop_remainder`, rows that do not fill a batch on every worker are dropped. Raises ``EmptyDataError`` if a
    worker would have no row in some step.

    >>> agree_steps({"worker:0": 9, "worker:1": 8}, 4, drop_remainder=False)
    3
    """
    steps = min(rows.values()) // batch_size if drop_remainder else -(-max(rows.values()) // batch_size)
    fewest = min(rows, key=lambda worker: rows[worker])
    if steps == 0 or rows[fewest] < steps:
        advice = (
            "Use fewer workers or a smaller batch."
            if drop_remainder
            else "Use fewer workers, a larger batch, or drop_remainder=True."
        )
        raise EmptyDataError(
            f"{fewest} has {rows[fewest]} row(s), which cannot give every worker a batch in each of "
            f"{max(steps, 1)} step(s) of {batch_size} row(s) a worker (drop_remainder={drop_remainder}). "
            f"Rows by worker: {rows}. {advice}"
        )
    return steps


def batch_sizes(rows: int, batch_size: int, steps: int, drop_remainder: bool) -> Int64s:
    """Sizes of one worker's batches, shape ``(steps,)``, each at least 1.

    Batches are full as long as a row remains for each later step.

    >>> batch_sizes(8, 4, 3, drop_remainder=False).tolist()
    [4, 3, 1]
    """
    if drop_remainder:
        return np.full(steps, batch_size, dtype=np.int64)
    later = np.arange(steps - 1, -1, -1)
    taken = np.minimum(np.arange(1, steps + 1) * batch_size, rows - later)
    return np.diff(taken, prepend=0).astype(np.int64)
