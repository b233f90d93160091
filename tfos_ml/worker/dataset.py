"""Row store -> ``tf.data``: batches of the sizes, and rows in the order, that the nodes have agreed on.

``tf.data`` gets rows in blocks of a few thousand and cuts them with ``rebatch``, which is as fast as data in memory. A
generator of single rows is a hundred times slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from tfos_ml.data.row_order import Int64s
from tfos_ml.data.schema import Array, ColumnSpec, FeedSchema
from tfos_ml.worker.distributed_input import as_rows_of_one_worker
from tfos_ml.worker.row_store import RowStore
from tfos_ml.worker.rows import RowFormat

if TYPE_CHECKING:
    import tensorflow as tf

MOST_PREFETCHED = 4  # batches; more do not fit into the processor's cache


def blocks(
    store: RowStore, sizes: Int64s, seed: int | None, epoch: int, pad_value: float
) -> Iterator[tuple[Array, ...]]:
    """The rows of one pass in blocks; in single batches if rows are padded to the longest of their batch."""
    order, edges = store.plan(seed, epoch)
    total = int(sizes.sum())
    if store.has_ragged:
        cuts = np.concatenate([[0], np.cumsum(sizes)])
    else:
        cuts = np.append(np.arange(0, total, store.block_rows()), total)
    for rows, at in store.read(order, cuts, edges):
        yield rows.gather(at, pad_value)


def make_dataset(
    store: RowStore, sizes: Int64s, epochs: int, seed: int | None, pad_value: float, tells_length: bool = True
) -> tf.data.Dataset:
    """A dataset of batches of the given sizes, shape ``(steps,)``, of one pass; TensorFlow is told their number or not.

    One iteration has `epochs` passes. Each pass, in later iterations too, has a new order, unless `seed` is None.
    `pad_value` fills rows shorter than the longest of their batch.
    """
    import tensorflow as tf

    iterations = count()  # numbered from their beginning, so that an abandoned one does not put workers out of step

    def generate() -> Iterator[Any]:
        first = next(iterations) * epochs
        for epoch in range(first, first + epochs):
            for block in blocks(store, sizes, seed, epoch, pad_value):
                yield structure(store.schema, block)

    dataset = tf.data.Dataset.from_generator(generate, output_signature=element_spec(store))
    if not store.has_ragged:
        dataset = dataset.rebatch(sizes if len(sizes) else 1)
    if tells_length:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(sizes) * epochs))
    dataset = without_autotuning(dataset.prefetch(prefetched(store.block_rows(), sizes)))
    return as_rows_of_one_worker(dataset)


def prefetched(block_rows: int, sizes: Int64s) -> int:
    """How many batches to prefetch: some, but no more than a block."""
    return min(MOST_PREFETCHED, max(1, block_rows // max(1, int(sizes.max(initial=1)))))


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without autotuning, whose thread lets iterators end late: epochs of 2.7 s took 2.7 s or 5.1 s."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def structure(schema: FeedSchema, values: tuple[Any, ...]) -> Any:
    """Arrange one value a column as ``features``, ``(features, label)`` or ``(features, label, weight)``."""
    by_role: dict[str, dict[str, Any]] = {"feature": {}, "label": {}, "weight": {}}
    for spec, value in zip(schema.columns, values, strict=True):
        by_role[spec.role][spec.name] = value
    parts = [_one_or_all(by_role["feature"], schema.named_features)]
    if by_role["label"]:
        parts.append(_one_or_all(by_role["label"], schema.named_labels))
    if by_role["weight"]:
        parts.append(_one_or_all(by_role["weight"], schema.named_weights))
    return parts[0] if len(parts) == 1 else tuple(parts)


def _one_or_all(values: dict[str, Any], named: bool) -> Any:
    return values if named else next(iter(values.values()))


def element_spec(store: RowFormat) -> Any:
    """Structure, shapes and dtypes of a batch."""
    import tensorflow as tf

    def spec(column: ColumnSpec, shape: tuple[int | None, ...]) -> tf.TensorSpec:
        return tf.TensorSpec((None, *shape), tf.string if column.is_text else tf.as_dtype(column.dtype))

    return structure(store.schema, tuple(map(spec, store.schema.columns, store.shapes)))
