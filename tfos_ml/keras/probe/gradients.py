"""Gradients of a tried step: what is kept of them, and how far they are apart.

A model has as many gradients as weights, and a step is tried several times. So of each gradient a *sketch* is kept: of
a large one its parts, summed up with random factors. Sketches of sums are sums of sketches, and other gradients have
other sketches, so what holds of sketches holds of gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfos_ml.data.schema import Array

NUMBERS = 1 << 14  # in a sketch
_SMALL = 1e-3  # gradients below this part of the largest one may be off by more
_SAME = 1e-4  # two steps that do the same differ by less: sums of threads are rounded in another order


class Gradient(NamedTuple):
    """What is kept of a gradient; `entries` are the indices of slices of a table, and `largest` has no sign."""

    sketch: Array
    largest: float
    norm: float
    entries: Array | None

    @classmethod
    def of(cls, gradient: Any) -> Gradient | None:
        """What is kept of a tensor, of ``IndexedSlices``, or of None."""
        if gradient is None:
            return None
        if not isinstance(gradient, tf.IndexedSlices):
            values = np.ravel(np.asarray(gradient))
            return cls._kept(sketch(values), values, None)
        used, place = tf.unique(gradient.indices)
        values = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(used)).numpy()
        rows = values.reshape(len(values), -1)
        places = (np.asarray(used, np.int64)[:, None] * rows.shape[1] + np.arange(rows.shape[1])).ravel()
        factors = _factors(int(np.prod(gradient.dense_shape, dtype=np.int64)))[places // NUMBERS]
        numbers = np.bincount(places % NUMBERS, rows.ravel() * factors, NUMBERS)
        return cls._kept(numbers, rows.ravel(), np.asarray(gradient.indices))

    @classmethod
    def _kept(cls, numbers: Array, values: Array, entries: Array | None) -> Gradient:
        largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
        return cls(numbers.astype(np.float64), largest, float(np.linalg.norm(values)), entries)


def sketch(values: Array) -> Array:
    """The numbers of an array, or random sums of those of a large one."""
    flat = np.ravel(values)
    if len(flat) <= NUMBERS:
        return np.array(flat)
    flat = flat.astype(np.float64 if flat.dtype == np.float64 else np.float32, copy=False)
    factors = _factors(len(flat)).astype(flat.dtype)
    parts, rest = np.split(flat, [len(flat) // NUMBERS * NUMBERS])
    numbers: Array = factors[: len(parts) // NUMBERS] @ parts.reshape(-1, NUMBERS)
    numbers[: len(rest)] += factors[-1] * rest
    return numbers


def _factors(size: int) -> Array:
    """One for each part of an array of so many numbers."""
    return np.random.default_rng(0).standard_normal(size // NUMBERS + 1)


def distances(
    names: Sequence[str], parts: Sequence[Sequence[Gradient | None]], weights: tuple[float, float]
) -> Iterator[tuple[str, dict[str, float]]]:
    """For each variable, how far two shares combined, as "mean" or "sum", are from all rows, relative to its size."""
    largest = _largest(parts[0])
    for name, *three in zip(names, *parts, strict=False):
        if None not in three:
            whole, first, second = (gradient.sketch for gradient in three)
            off = {"mean": weights[0] * first + weights[1] * second - whole, "sum": first + second - whole}
            yield name, {kind: _relative(values, three, largest) for kind, values in off.items()}


def differ(ones: Sequence[Gradient | None], others: Sequence[Gradient | None]) -> bool:
    """Whether the gradients of two steps on the same rows differ."""
    largest, pairs = _largest(ones), zip(ones, others, strict=False)
    return any(not _relative(a.sketch - b.sketch, (a, b), largest) < _SAME for a, b in pairs if a and b)


def norm(gradients: Sequence[Gradient | None]) -> float:
    """Of all gradients of a step together."""
    return float(np.linalg.norm([gradient.norm for gradient in gradients if gradient is not None]))


def _largest(gradients: Sequence[Gradient | None]) -> float:
    return max((gradient.largest for gradient in gradients if gradient is not None), default=0.0)


def _relative(off: Array, gradients: Sequence[Gradient], largest: float) -> float:
    """The size of a difference beside that of gradients; less if these are small beside the `largest` of a step."""
    size = max(float(np.abs(gradient.sketch).max(initial=0.0)) for gradient in gradients)
    part = _largest(gradients) / (_SMALL * largest + 1e-12)
    return float(np.abs(off).max(initial=0.0)) / (size + 1e-12) * min(1.0, part)
