"""Reads rows on disk in any order, with bounded memory.

A pass is cut into *windows*, which have as many rows as may be in memory at a time. While the current window is used, a
thread reads the batches that have rows of the next window, each once and in the order of the disk, and keeps these
rows. A batch is read once for each window that needs some of its rows. That is about once per pass if the order is that
of the disk or of a block shuffle. The rows of a step that a window does not complete are carried over to the next
window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np

from tfos_ml.data.row_order import Int64s
from tfos_ml.worker.rows import Part, RowFormat, Rows, View, joined, picks_of

ReadBatch: TypeAlias = Callable[[int], Sequence[View]]
"""The columns of a batch, by its number."""

Load: TypeAlias = Callable[[Int64s, Sequence[Part]], Rows]
"""Loads one window after another: the rows of some parts, then those at ascending positions, as one batch."""


@dataclass
class _Window:
    start: int  # index in the order of the first row
    rows: Rows
    at: Int64s  # positions in `rows`, in the order


def windows(order: Int64s, cuts: Int64s, bounds: Sequence[int], load: Load) -> Iterator[tuple[Rows, Int64s]]:
    """Read the pieces ``order[cuts[i] : cuts[i + 1]]`` one after another: rows in memory, and positions in them.

    `bounds` are the indices in the order at which windows begin, and the end of the last window.
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
