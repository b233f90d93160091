"""Rows that are not all in memory, read in any order with bounded memory.

A pass is cut into *windows*: as many rows as may be in memory at a time. A thread reads the batches that hold rows of
the next window, each once and in the order in which they lie on disk, and keeps those rows, while the present window is
being trained. So it costs as many readings of all batches as windows need rows of a batch: one where the order of the
pass is that of the disk, or a block shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tfos_ml.data.order import Int64s
from tfos_ml.worker.rows import RowFormat, Rows, View, as_index, picks_of

ReadBatch = Callable[[int], Sequence[View]]
"""The columns of a batch, by its number."""


def windows(
    order: Int64s, cuts: Int64s, bounds: Sequence[int], load: Callable[[Int64s], Rows]
) -> Iterator[tuple[Rows, Int64s]]:
    """The pieces ``order[cuts[i] : cuts[i + 1]]`` one after another: rows in memory, and positions in them.

    `bounds` are the numbers of the pieces at which windows begin and the last ends. `load` makes rows in memory of
    those at some positions, in ascending order of these; it is called for one window after another.
    """

    def loaded(first: int, last: int) -> tuple[Rows, Int64s]:
        positions = order[cuts[first] : cuts[last]]
        by_position = np.argsort(positions, kind="stable")
        at = np.empty_like(by_position)
        at[by_position] = np.arange(len(positions))
        return load(positions[by_position]), at

    with ThreadPoolExecutor(1, thread_name_prefix="tfos_ml-rows") as reader:
        ahead = reader.submit(loaded, *bounds[:2]) if len(bounds) > 1 else None
        for number, (first, last) in enumerate(pairwise(bounds)):
            assert ahead is not None
            rows, at = ahead.result()
            following = bounds[number + 1 : number + 3]
            ahead = reader.submit(loaded, *following) if len(following) == 2 else None
            for start, end in pairwise(cuts[first : last + 1] - cuts[first]):
                yield rows, at[start:end]
            del rows, at


def window_bounds(cuts: Int64s, rows_in_window: int, edges: Int64s) -> list[int]:
    """Numbers of the pieces at which windows begin, and the number of pieces.

    Windows end at `edges`, or with the piece that has one within it, and have no more than `rows_in_window` rows unless
    one piece has.
    """
    bounds, pieces = [0], len(cuts) - 1
    while bounds[-1] < pieces:
        first = cuts[bounds[-1]]
        last = int(np.searchsorted(cuts, first + rows_in_window, side="right")) - 1
        edge = int(np.searchsorted(edges, first, side="right"))
        if edge < len(edges):
            last = min(last, int(np.searchsorted(cuts, edges[edge])))
        bounds.append(min(pieces, max(bounds[-1] + 1, last)))
    return bounds


def load_rows(form: RowFormat, read: ReadBatch, starts: Int64s, positions: Int64s) -> Rows:
    """The rows at ascending positions, in memory of their own; each batch is read once."""
    views, sizes = [], []
    for batch, _, wanted in picks_of(positions, starts):
        views.append([_picked(view, wanted) for view in read(batch)])
        sizes.append(len(wanted))
    return Rows(form, views, sizes)


def _picked(view: View, wanted: Int64s) -> View:
    """Some rows of a batch; a part of it without a copy if they are most of it."""
    at = as_index(wanted)
    if isinstance(at, slice) and 2 * len(wanted) >= len(view):
        return view[at]
    return view[wanted] if isinstance(view, np.ndarray) else view.take(pa.array(wanted))
