"""Rows that are not all in memory, read in any order with bounded memory.

A pass is cut into *windows*: as many rows as may be in memory at a time. A thread reads the batches that hold rows of
the next window, each once and in the order in which they lie on disk, and keeps those rows, while the present window is
being trained. So it costs as many readings of all batches as windows need rows of a batch: one where the order of the
pass is that of the disk, or a block shuffle. What a window begins of a step, the next one takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np

from tfos_ml.data.order import Int64s
from tfos_ml.worker.rows import Part, RowFormat, Rows, View, joined, picks_of

ReadBatch: TypeAlias = Callable[[int], Sequence[View]]
"""The columns of a batch, by its number."""

Load: TypeAlias = Callable[[Int64s, Sequence[Part]], Rows]
"""Rows of some parts, and then those at ascending positions, as one batch; called for one window after another."""


@dataclass
class _Window:
    start: int  # place in the order of its first row
    rows: Rows
    at: Int64s  # positions in `rows`, from that place on


def windows(order: Int64s, cuts: Int64s, bounds: Sequence[int], load: Load) -> Iterator[tuple[Rows, Int64s]]:
    """The pieces ``order[cuts[i] : cuts[i + 1]]`` one after another: rows in memory, and positions in them.

    `bounds` are the places in the order at which windows begin and the last ends.
    """
    if not len(order) or len(bounds) < 2:
        yield from ((load(order[:0], ()), order[:0]) for _ in pairwise(cuts))
        return
    done = 0
    with ThreadPoolExecutor(1, thread_name_prefix="tfos_ml-rows") as reader:
        spans = list(pairwise(bounds))
        ahead = reader.submit(_loaded, order, cuts, spans[0], load, None)
        for following in [*spans[1:], None]:
            window = ahead.result()
            end = window.start + len(window.at)
            if following is not None:
                ahead = reader.submit(_loaded, order, cuts, following, load, window)
            while done + 1 < len(cuts) and cuts[done + 1] <= end:
                yield window.rows, window.at[cuts[done] - window.start : cuts[done + 1] - window.start]
                done += 1


def _loaded(order: Int64s, cuts: Int64s, span: tuple[int, int], load: Load, before: _Window | None) -> _Window:
    first, last = span
    start = int(cuts[np.searchsorted(cuts, first, side="right") - 1])  # of the piece that has the first row
    carried: list[Part] = []
    if before is not None and start < first:
        carried.append((before.rows.only_batch, before.at[start - before.start :]))
    positions = order[first:last]
    by_position = np.argsort(positions, kind="stable")
    at = np.arange(last - start)
    at[first - start :][by_position] = np.arange(first - start, last - start)
    return _Window(start, load(positions[by_position], carried), at)


def window_bounds(total: int, rows_in_window: int, edges: Int64s) -> list[int]:
    """Places at which windows begin, and the number of all rows.

    A window ends at the last of the `edges` for which it has room. Without such an edge, it ends when it is full.
    """
    bounds = [0]
    while bounds[-1] < total or len(bounds) == 1:
        full = min(bounds[-1] + rows_in_window, total)
        last = int(np.searchsorted(edges, full, side="right")) - 1
        ends_at_edge = full < total and last >= 0 and edges[last] > bounds[-1]
        bounds.append(int(edges[last]) if ends_at_edge else full)
    return bounds


def load_rows(
    form: RowFormat, read: ReadBatch, starts: Int64s, positions: Int64s, carried: Sequence[Part] = ()
) -> Rows:
    """The rows at ascending positions, in memory of their own; each batch is read once."""
    rows = len(positions) + sum(len(at) for _, at in carried)
    parts = ((read(batch), wanted) for batch, _, wanted in picks_of(positions, starts))
    return joined(form, rows, chain(carried, parts))
