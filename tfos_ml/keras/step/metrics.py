"""Adds the states of metrics up over the workers at the end of each pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.privates import is_of_keras
from tfos_ml.keras.step.variables import metric_variables

if TYPE_CHECKING:
    from tfos_ml.keras.step.reduction_plan import PassReductions
    from tfos_ml.worker.global_batches import GlobalBatches


def is_exact(metric: Any, plan: PassReductions) -> bool:
    """Whether the states of a metric, added up over workers, are the state for all rows.

    If it was not tried: true for Keras's own metrics and their subclasses, false for direct subclasses of ``Metric``.
    """
    if plan.inexact is not None:
        return metric.name not in plan.inexact
    return next(filter(is_of_keras, type(metric).__mro__)) is not keras.metrics.Metric


def leaf_metrics(model: keras.Model) -> list[Any]:
    """All metrics of a model, including those passed to ``compile``."""
    leaves: list[Any] = []
    for metric in model.metrics:
        leaves.extend(getattr(metric, "metrics", None) or [metric])
    return [m for m in leaves if isinstance(m, keras.metrics.Metric)]


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """The logs that are single numbers."""
    return {k: float(v) for k, v in logs.items() if not isinstance(v, dict) and np.ndim(v) == 0}


class MetricSums:
    """Merges the metrics of all workers.

    Metrics whose states add up get the state for all rows, on every worker. The results of the others, which
    ``inexact`` names, are averaged, weighted by rows. ``replaced`` has the logs of the last pass that do not follow
    from the metrics' states.
    """

    def __init__(self, model: keras.Model, group: WorkerGroup, plan: PassReductions):
        self._model = model
        self._group = group
        self.own_logs, self.summed_logs, self.renamed = plan.own_logs, plan.summed_logs, plan.renamed
        self.replaced: dict[str, float] = {}
        self.inexact: list[str] = []
        if group.size > 1:
            self.inexact = [m.name for m in leaf_metrics(model) if not is_exact(m, plan)]
        self._exact = {m.name for m in leaf_metrics(model)} - set(self.inexact)

    def all_end_pass(self, batches: GlobalBatches, share: float, logs: Mapping[str, Any]) -> dict[str, float]:
        """End a pass with the metrics of all workers; returns ``replaced``.

        All workers call it after the same step, with logs of the same names.
        `logs` are those of its last step, and `share` is the part of that step's rows that this worker has.
        """
        results, own = self._model.get_metrics_result(), {}
        if self._group.size > 1 and set(logs) != set(results):
            # A train_step with its own logs: take those of the last step, by its rows. The others are metrics.
            own = {k: v for k, v in numbers(logs).items() if k not in results or k in self.own_logs}
        sums = {k: v for k, v in own.items() if k in self.summed_logs}
        replaced = self.all_mean({k: v for k, v in own.items() if k not in sums}, share)
        replaced |= self.all_mean(sums, float(share > 0))
        averages = self.all_sum_states(len(batches) / batches.total)
        if self._group.size > 1:  # a train_step may return dicts in its logs, which Keras has left as they are
            results = numbers(self._model.get_metrics_result())
            replaced |= {k: v for k, v in results.items() if k in logs and k not in own}
            replaced |= {log: results[name] for log, name in self.renamed if own}
        self.replaced = {**replaced, **averages}
        return self.replaced

    def all_results(self, batches: GlobalBatches, share: float, logs: Mapping[str, Any]) -> dict[str, float]:
        """Like :meth:`all_end_pass` for a step within the pass: the metrics go on with this worker's rows."""
        before = [(variable, np.asarray(variable)) for variable in metric_variables(self._model)]
        try:
            return self.all_end_pass(batches, share, logs)
        finally:
            for variable, value in before:
                variable.assign(value)

    def all_sum_states(self, weight: float) -> dict[str, float]:
        """Add the states up; returns row-weighted averages of the results of the other metrics.

        `weight` is this worker's share of all rows of the pass.
        """
        if self._group.size == 1:
            return {}
        averages = {}
        if self.inexact:
            results = self._model.get_metrics_result()
            averages = self.all_mean({k: v for k, v in results.items() if self._is_inexact(k)}, weight)
        variables = metric_variables(self._model)
        sums = self._group.all_sum([np.asarray(v) for v in variables])
        for variable, total in zip(variables, sums, strict=True):
            variable.assign(total)
        return averages

    def _is_inexact(self, log: str) -> bool:
        """Whether a log is the result of an inexact metric: its name, after that of an output if there are several."""
        return log not in self._exact and any(re.search(rf"(^|_){re.escape(name)}$", log) for name in self.inexact)

    def all_mean(self, values: Mapping[str, Any], weight: float) -> dict[str, float]:
        """Weighted mean over workers of named numbers."""
        if not values:
            return {}
        names = sorted(values)
        weighted = np.array([float(np.asarray(values[n])) if weight else 0.0 for n in names]) * weight
        (total,) = self._group.all_sum([weighted])
        return dict(zip(names, total.tolist(), strict=True))
