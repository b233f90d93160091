"""Datasets of one worker's rows under ``tf.distribute`` strategies.

A strategy of several workers takes a dataset for the rows of all workers: it gives each worker a part of every batch,
or every second batch, although ``fit`` takes as many steps as the dataset has batches. The datasets of
:meth:`tfos_ml.NodeContext.dataset` hold the rows of one worker, whose batches are its share of a step. This module has
all undocumented parts of TensorFlow's strategies that tfos_ml uses (tested with TensorFlow 2.21).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfos_ml.errors import CollectiveCallError

if TYPE_CHECKING:
    import tensorflow as tf

_MARK = "tfos_ml"


def as_rows_of_one_worker(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, and what is made of it by ``map``, ``prefetch`` and so on, as rows of this worker alone.

    ``fit`` of tf_keras and ``experimental_distribute_dataset`` divide its batches among the replicas of this process,
    and do nothing else to them.
    """
    import tensorflow as tf

    _adapt_strategies()
    options = tf.data.Options()
    options.framework_type = [_MARK]  # of all options, this list is the one that TensorFlow merges and does not use
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def _adapt_strategies() -> None:
    """Have the strategies of several processes, in this process, know the mark."""
    import tensorflow as tf

    for strategy, distribute in (
        (tf.distribute.MultiWorkerMirroredStrategy, _distribute_among_replicas),
        (tf.distribute.ParameterServerStrategy, _refuse),
    ):
        if "experimental_distribute_dataset" not in vars(strategy):
            strategy.experimental_distribute_dataset = _unless_marked(strategy, distribute)


def _unless_marked(strategy_class: Any, distribute: Any) -> Any:
    inherited = strategy_class.experimental_distribute_dataset

    def experimental_distribute_dataset(self: Any, dataset: Any, options: Any = None) -> Any:
        own = getattr(dataset, "options", None)
        is_marked = own is not None and _MARK in (own().framework_type or ())
        return distribute(self, dataset, options) if is_marked else inherited(self, dataset, options)

    return experimental_distribute_dataset


def _distribute_among_replicas(strategy: Any, dataset: Any, options: Any) -> Any:
    """As if this worker were the only one, except that an epoch ends when that of all workers does."""
    import tensorflow as tf
    from tensorflow.python.distribute.input_util import get_distributed_dataset

    extended = strategy.extended
    replicas = len(extended.worker_devices)
    return get_distributed_dataset(
        dataset,
        extended._input_workers_with_options(options),
        strategy,
        num_replicas_in_sync=replicas,
        input_context=tf.distribute.InputContext(num_replicas_in_sync=replicas),
        options=options,
    )


def _refuse(strategy: Any, dataset: Any, options: Any) -> Any:
    raise CollectiveCallError(
        "ctx.dataset() has its rows in the process of this node, and workers of a ParameterServerStrategy cannot read "
        "them. Received: the dataset, in fit() or experimental_distribute_dataset(). Pass its batches to the steps: "
        "coordinator.schedule(step, args=(x, y)) for x, y in ctx.dataset()"
    )
