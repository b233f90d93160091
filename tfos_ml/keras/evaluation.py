"""Evaluates the model of a ``KerasEstimator``: ``Model.evaluate`` on every worker, in step, without training."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras.build import KerasFit, build_model
from tfos_ml.keras.probe.plan import find_plan
from tfos_ml.keras.step.data_parallel import DataParallel
from tfos_ml.keras.step.variables import TrainingVariables
from tfos_ml.keras.training import workers_of

if TYPE_CHECKING:
    from tfos_ml.keras.collectives.group import WorkerGroup
    from tfos_ml.worker.node_context import NodeContext


def evaluate(task: KerasFit, ctx: NodeContext) -> None:
    """Evaluate the model with the other workers; the chief reports the loss and the metrics by name."""
    with workers_of(ctx) as group:
        results, notices = evaluate_model(task, ctx, group)
    if ctx.is_chief:
        ctx.report(results)
        ctx.summarize({"warnings": notices})


def evaluate_model(task: KerasFit, ctx: NodeContext, group: WorkerGroup) -> tuple[dict[str, float], list[str]]:
    """The loss and the metrics of all rows, the same on all workers; and notices for the user.

    The rows are in the steps in which Keras would take them. Raises ``ModelError`` for metrics that several workers
    cannot combine exactly, or that are not numbers.
    """
    notices: list[str] = []
    model, data = build_model(task, ctx, group, notices)
    variables = TrainingVariables.of_step(model)
    plan = find_plan(variables, data, group, tests=True, trains=False)
    parallel = DataParallel(variables, group, plan, functools.cache(lambda train: data.stand_in(train=True)))
    metrics = parallel.test_metrics
    if metrics.inexact:
        raise ModelError(
            f"Metrics {metrics.inexact} cannot be combined exactly from the results of {group.size} nodes: their "
            "states do not add up over rows. Evaluate on one node, with evaluate(df, clusterSize=1), or use metrics "
            "whose states are sums or means over rows."
        )

    def end_pass(batch: int, logs: Any) -> None:
        if batch >= data.train.steps - 1:
            metrics.all_end_pass(data.train, float(parallel.last_share), logs or {})

    end = keras.callbacks.LambdaCallback(on_test_batch_end=end_pass)
    try:
        # Not the instance's own evaluate, which DataParallel takes for that of a callback.
        results = type(model).evaluate(model, data.dataset("train"), callbacks=[end], return_dict=True, verbose=0)
    except tf.errors.OpError as error:
        raise data.range_error(error) or error from None
    finally:
        parallel.close()
    results.update(metrics.replaced)
    vectors = sorted(name for name, value in results.items() if isinstance(value, dict) or np.ndim(value))
    if vectors:
        raise ModelError(
            f"Metrics {vectors} are vectors, and evaluate returns numbers. Use their mean, such as average='macro', or "
            "one metric per class."
        )
    return {name: float(value) for name, value in results.items()}, [*notices, *plan.notices]
