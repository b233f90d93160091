"""Compares the gradients of a step on all rows with those on two shares of them, one variable after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_ml.data.schema import Array

BLOCK = 1 << 20  # numbers that are compared at a time: what is computed of them takes ten times their memory


@dataclass(frozen=True)
class Gradients:
    """What is known of the gradients of a step, of which there are as many as of the model.

    Attributes
    ----------
    distances : list of (str, dict of str to float)
        For each variable how far both shares combined, as "mean" or "sum", are from all rows, relative to its size.
    norms : list of float
        Of all gradients together, on all rows and on each share.
    marks : list of (float, float)
        For each gradient on all rows two numbers that other gradients would not have.
    slices : dict of int to (str, bool, list of int)
        Of gradients that are slices of a table, by position: its name, whether all have the same entries, and how many.
    """

    distances: list[tuple[str, dict[str, float]]]
    norms: list[float]
    marks: list[tuple[float, float]]
    slices: dict[int, tuple[str, bool, list[int]]]

    def differ_from(self, others: Gradients) -> bool:
        """Whether two steps on the same rows differ, because they draw random numbers."""
        return not np.allclose(self.marks, others.marks, rtol=1e-4)


def compare(names: Sequence[str], parts: Sequence[Sequence[Any]], weights: tuple[float, float]) -> Gradients:
    """Compare gradients, by variable, of all rows and of two shares with so much weight."""
    distances, marks, slices = [], [], {}
    squares = np.zeros(3)
    largest = max((float(tf.reduce_max(tf.abs(_values(g)))) for g in parts[0] if g is not None), default=0.0)
    for i, (name, *gradients) in enumerate(zip(names, *parts, strict=False)):
        if any(gradient is None for gradient in gradients):
            continue
        if all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            entries = [np.asarray(gradient.indices) for gradient in gradients]
            is_same = all(np.array_equal(entries[0], other) for other in entries[1:])
            slices[i] = name, is_same, [len(indices) for indices in entries]
        flat = [np.ravel(np.asarray(tf.convert_to_tensor(gradient))) for gradient in gradients]
        far, size, mark = {"mean": 0.0, "sum": 0.0}, 0.0, np.zeros(2)
        for start in range(0, len(flat[0]), BLOCK):
            whole, first, second = (part[start : start + BLOCK].astype(np.float64) for part in flat)
            squares += [np.square(part).sum() for part in (whole, first, second)]
            size = max(size, float(np.abs(whole).max()))
            mark += _marks(whole, start, len(flat[0]))
            for kind, off in (
                ("mean", weights[0] * first + weights[1] * second - whole),
                ("sum", first + second - whole),
            ):
                far[kind] = max(far[kind], float(np.abs(off).max()))
        scale = max(size, 1e-3 * largest) + 1e-12
        marks.append((float(mark[0]), float(mark[1])))
        distances.append((name, {kind: off / scale for kind, off in far.items()}))
    return Gradients(distances, np.sqrt(squares).tolist(), marks, slices)


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _marks(part: Array, start: int, size: int) -> tuple[float, float]:
    """Of a part of a gradient that has so many numbers: their squares, and the positive ones by their places."""
    places = 0.5 + np.arange(start, start + len(part)) / (2 * max(1, size - 1))
    return float(np.square(part).sum()), float(np.maximum(part, 0) @ places)
