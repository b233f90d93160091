"""Tries one step on a few rows, whole and in two shares, before the training begins.

What a custom layer, loss or ``train_step`` does across rows cannot be derived from its class. So the program itself is
tried: the gradients, metrics and assigned state of a step on all rows are compared with those that two workers would
combine from 5/8 and 3/8 of them. The :class:`ReductionPlan` of the training follows from what agrees; if nothing
agrees, it is an error. This is repeated as if many steps had been done, since losses may change after a warm-up.
Afterwards the model is as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras import privates
from tfos_ml.keras.probe.gradients import differ, distances, norm, sketch
from tfos_ml.keras.probe.known_layers import draws_by_batch, is_row_by_row, refuse_float8
from tfos_ml.keras.probe.one_step import (
    ALL,
    SECOND,
    Outcome,
    StepTrials,
    Try,
    restoring,
)
from tfos_ml.keras.probe.varied_rows import gather_varied_rows
from tfos_ml.keras.step.batch_normalization import is_batch_normalization
from tfos_ml.keras.step.losses import OUTPUT_LOSS
from tfos_ml.keras.step.metrics import leaf_metrics
from tfos_ml.keras.step.reduction_plan import PassReductions, ReductionPlan
from tfos_ml.keras.step.variables import metric_variables
from tfos_ml.protocol.codec import decode, encode

if TYPE_CHECKING:
    from tfos_ml.keras.collectives.group import WorkerGroup
    from tfos_ml.keras.step.variables import TrainingVariables
    from tfos_ml.keras.training_data import TrainingData

ROWS = 8
_TOLERANCE = 1e-3
_HALF_TOLERANCE = 5e-2  # of models that compute in 16 bits
_DRAWS = (
    "A training step draws random numbers that differ between workers: two steps on the same rows differed. Several "
    "workers do not train exactly what one does. Use keras.random with a keras.random.SeedGenerator of the layer."
)

_NOT_BY_AN_OPTIMIZER = (
    "Two workers would not train this model as one does. A training step changes the weights {} itself, by the rows of "
    "its worker. Let a keras.optimizers.Optimizer change them, with which the workers exchange gradients. Else use "
    "clusterSize=1, or a TFEstimator with a training loop of your own."
)
_UNTRIED = (
    "It could not be checked before the training whether several workers train this model as one does: {}. "
    "To be sure, compare the result with that of a fit with clusterSize=1."
)
_LAYER_DRAWS = (
    "The layers {} draw random numbers for a batch as a whole, or take its first row for others: several workers train "
    "with other rows than one. Use layers that draw for each row, such as RandomRotation, or clusterSize=1."
)


def find_plan(
    variables: TrainingVariables, data: TrainingData, group: WorkerGroup, tests: bool, trains: bool = True
) -> ReductionPlan:
    """The plan of a training, found on the first worker with rows of several, and the same on all workers.

    `tests` is whether there are passes that only test the model; `trains` is whether there are others.

    Raises ``ModelError`` if the results of several workers cannot be combined; if a step has shown that, on the first
    worker only.
    """
    if group.size == 1:
        return ReductionPlan()
    model = variables.model
    refuse_float8(model)
    drawing = draws_by_batch(model)
    notices = (_LAYER_DRAWS.format(drawing),) if drawing else ()
    if is_row_by_row(model):
        return ReductionPlan(notices=notices)
    element = gather_varied_rows(data, ROWS, group)
    found = encode(_try(variables, element, tests, trains)) if group.rank == 0 else b""
    # All workers: they have the same model, so none of them has returned above.
    plan = decode(ReductionPlan, group.broadcast_bytes(found, group.rank == 0))
    if plan.together and not group.takes_any_shape:
        raise ModelError(
            "The loss computes over the rows of a batch together. KerasEstimator supports that only on CPUs with "
            "communication='auto'. Use that, or clusterSize=1."
        )
    return replace(plan, notices=(*notices, *plan.notices))


def _try(variables: TrainingVariables, element: Any, tests: bool, trains: bool = True) -> ReductionPlan:
    rows = int(tf.nest.flatten(element)[0].shape[0])
    if rows < 2:
        return ReductionPlan(notices=(_UNTRIED.format("the check needs two rows"),))
    try:
        with restoring(variables):
            probe = _Probe(variables, element, rows)
            return probe.plan(tests) if trains else probe.plan_of_test()
    except ModelError:
        raise
    except Exception as error:
        return ReductionPlan(
            notices=(_UNTRIED.format(f"a step on {rows} rows raised {type(error).__name__}: {error}"),)
        )


class _Probe:
    """Compares the step on all rows with that on each share."""

    def __init__(self, variables: TrainingVariables, element: Any, rows: int):
        self._model, self._rows = variables.model, rows
        self._trials = StepTrials(variables, element, rows)
        self._weights = self._trials.weights
        self._of_model = len(self._model.variables)
        self._is_uncertain = False  # if so, the nearest rule is taken
        is_half = any("16" in layer.compute_dtype for layer in privates.all_layers(self._model))
        self._tolerance = _HALF_TOLERANCE if is_half else _TOLERANCE

    def plan(self, tests: bool) -> ReductionPlan:
        tries: Sequence[Try] = self._trials.tries(ReductionPlan())
        whole = tries[0][ALL]
        draws = False
        if len(tries) > 1:  # else two steps were alike
            (again,) = self._trials.run(ReductionPlan(), parts=(ALL,))
            draws = self._is_uncertain = differ(whole.gradients, again.gradients)
        plan = self._of_terms(tries)
        of_outputs = {n for n in whole.terms if n.startswith(OUTPUT_LOSS) and n not in plan.sums}
        if plan.sums or plan.together:
            tries = self._trials.tries(plan)
        try:
            plan = replace(plan, gradient_is_sum=self._gradient_is_sum(tries))
        except ModelError:
            plan, tries = self._read_otherwise(plan, tries, of_outputs)
        assigned, notices = self._assigned(tries)
        return replace(
            plan,
            assigned=tuple(assigned),
            notices=tuple([*notices, _DRAWS] if draws else notices),
            whole_slices=tuple(self._whole_slices(tries[0])),
            train=self._of_pass(tries[0]),
            test=self._of_pass(self._trials.run(plan, "test_step")) if tests else PassReductions(),
        )

    def _read_otherwise(
        self, plan: ReductionPlan, tries: Sequence[Try], of_outputs: set[str]
    ) -> tuple[ReductionPlan, Sequence[Try]]:
        """The plan and its tries if gradients are neither means nor sums; raises ``ModelError`` if nothing explains it.

        BatchNormalization sends gradients back by the plan: where it expects means, those of a sum agree with nothing.
        And a loss may be nearly a mean, with a gradient far from it.
        """
        if any(is_batch_normalization(layer) for layer in privates.all_layers(self._model)):
            of_sums = replace(plan, gradient_is_sum=True)
            tries_of_sums = self._trials.tries(of_sums)
            with contextlib.suppress(ModelError):
                if self._gradient_is_sum(tries_of_sums):
                    return of_sums, tries_of_sums
        if not of_outputs <= set(plan.together):
            plan = replace(plan, together=tuple(sorted(of_outputs)))
            tries = self._trials.tries(plan)
        return replace(plan, gradient_is_sum=self._gradient_is_sum(tries)), tries

    def plan_of_test(self) -> ReductionPlan:
        """The plan of a pass that tests the model, whatever its training does."""
        tried = self._trials.run(ReductionPlan(), "test_step")
        plan = self._of_terms([tried])
        if plan.sums or plan.together:
            tried = self._trials.run(plan, "test_step")
        return replace(plan, test=self._of_pass(tried))

    def _of_terms(self, tries: Sequence[Try]) -> ReductionPlan:
        """Which terms of the loss are sums over rows, and which need all rows together."""
        kinds = {name: self._kind_of_term(name, tries) for name in tries[0][ALL].terms}
        return ReductionPlan(
            sums=tuple(name for name, kind in kinds.items() if kind == "sum"),
            together=tuple(sorted(n for n, kind in kinds.items() if n.startswith(OUTPUT_LOSS) and not kind)),
        )

    def _kind_of_term(self, name: str, tries: Sequence[Try]) -> str:
        """As :meth:`_kind`, of a term of the loss in all tries together."""
        parts = [[np.ravel(outcome.terms.get(name, 0.0)) for outcome in tried] for tried in tries]
        return self._kind(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _kind(self, whole: Any, first: Any, second: Any) -> str:
        """How the values of both shares combine to that of all rows: "mean", "sum", or "" for neither."""
        a, b = self._weights
        far = {"mean": a * first + b * second - whole, "sum": first + second - whole}
        distances = {kind: float(np.max(np.abs(off), initial=0.0)) for kind, off in far.items()}
        nearest = min(distances, key=lambda kind: distances[kind])
        most = self._tolerance * float(np.max(np.abs([whole, first, second]), initial=0.0)) + 1e-12
        return nearest if self._is_uncertain or distances[nearest] <= most else ""

    # Gradients

    def _gradient_is_sum(self, tries: Sequence[Try]) -> bool:
        far: dict[str, dict[str, float]] = {"mean": {}, "sum": {}}  # how far each variable is off, by kind
        for tried in tries:
            for name, kinds in self._distances(tried):
                for kind, off in kinds.items():
                    far[kind][name] = max(off, far[kind].get(name, 0.0))
        worst = {kind: max(off.values(), default=0.0) for kind, off in far.items()}
        nearest = min(worst, key=lambda kind: worst[kind])
        if worst[nearest] > self._tolerance and not self._is_uncertain:
            differing = {name: off for name, off in far["mean"].items() if off > self._tolerance}
            apart = max(tries, key=lambda tried: max(kinds["mean"] for _, kinds in self._distances(tried)))
            raise ModelError(_not_additive(differing, self._rows, [norm(o.gradients) for o in apart]))
        return nearest == "sum"

    def _distances(self, tried: Try) -> Iterator[tuple[str, dict[str, float]]]:
        return distances(tried[ALL].updated, [outcome.gradients for outcome in tried], self._weights)

    def _whole_slices(self, tried: Try) -> Iterator[int]:
        gradients = zip(*(outcome.gradients for outcome in tried), strict=False)
        for i, (name, three) in enumerate(zip(tried[ALL].updated, gradients, strict=False)):
            entries = [gradient.entries for gradient in three if gradient is not None and gradient.entries is not None]
            if len(entries) < len(tried):
                continue
            whole, first, second = map(len, entries)
            if all(np.array_equal(entries[0], other) for other in entries[1:]):
                yield i
            elif whole != first + second:
                raise ModelError(
                    f"A step reads the table {name!r} both at indices from rows and at other indices: {whole} "
                    f"entries for {self._rows} rows, {first} and {second} for two shares of them. "
                    "Several workers cannot combine such gradients exactly. Use a separate table for lookups "
                    "that do not depend on rows, or clusterSize=1."
                )

    # Metrics and state

    def _of_pass(self, outcomes: Sequence[Outcome]) -> PassReductions:
        places = {id(v): i for i, v in enumerate(metric_variables(self._model))}
        of_losses = privates.metrics_of_losses(self._model)
        by_step: list[int] = []
        inexact: list[str] = []
        for metric in leaf_metrics(self._model):
            if any(metric is known for known in of_losses):
                continue
            kinds = {i: self._adds(i, outcomes) for i in (places[id(v)] for v in metric.variables if id(v) in places)}
            if "" in kinds.values():
                inexact.append(metric.name)
            else:
                by_step += [i for i, kind in kinds.items() if kind == "mean"]
        logs, results = outcomes[ALL].logs, outcomes[ALL].results
        own = tuple(name for name in logs if not np.isclose(logs[name], results.get(name, np.nan)))
        summed = tuple(name for name in own if self._kind(*(o.logs[name] for o in outcomes)) == "sum")
        draws = tuple(outcomes[SECOND].drawn)
        return PassReductions(tuple(by_step), own, summed, tuple(_renamed(own, outcomes)), tuple(inexact), draws)

    def _adds(self, place: int, outcomes: Sequence[Outcome]) -> str:
        """Like :meth:`_kind`, but "sum" if both are possible."""
        whole, first, second = (o.metrics[place] for o in outcomes)
        if np.allclose(first + second, whole, rtol=self._tolerance, atol=1e-7):
            return "sum"
        return self._kind(whole, first, second)

    def _assigned(self, tries: Sequence[Try]) -> tuple[list[int], list[str]]:
        """Which variables the step assigns, without BatchNormalization's; notices of those that are not exact.

        Raises ``ModelError`` for weights that several workers would not train as one does.
        """
        known = {id(v) for layer in privates.all_layers(self._model) for v in _statistics(layer)}
        known |= {id(v) for v in metric_variables(self._model)}
        assigned: list[int] = []
        means, own, weights = list[str](), list[str](), list[str]()
        for i, variable in enumerate(self._trials.variables):
            written = [tried for tried in tries if i in tried[ALL].state]
            if id(variable) in known or not written:
                continue
            values = [[o.state.get(i, sketch(np.asarray(self._trials.start[i]))) for o in tried] for tried in written]
            is_float, of_keras = "float" in str(variable.dtype), i < self._of_model
            is_same = all(np.array_equal(whole, part) for whole, *parts in values for part in parts)
            is_mean = is_float and all(self._kind(*three) == "mean" for three in values)
            if (is_float and of_keras) or (is_mean and not is_same):
                assigned.append(i)
                if not is_mean:
                    (weights if variable.trainable else means).append(variable.path)
            elif not is_same:
                own.append(getattr(variable, "path", variable.name))
        if weights and not self._is_uncertain:
            raise ModelError(_NOT_BY_AN_OPTIMIZER.format(weights))
        wrong = {"the mean of their values, weighted by rows, is used": means, "each keeps those of its own rows": own}
        what = "A training step assigns {}, and several workers do not assign the same as one would: {}."
        return assigned, [what.format(n, how) for how, n in wrong.items() if n and not self._is_uncertain]


def _statistics(layer: Any) -> list[Any]:
    return list(layer.non_trainable_variables) if is_batch_normalization(layer) else []


def _renamed(logs: Sequence[str], outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    """Logs that have the result of a metric of another name, each with that name."""
    for log in logs:
        for name in outcomes[ALL].results:
            if all(np.isclose(o.logs[log], o.results[name], rtol=1e-6) for o in outcomes):
                yield log, name
                break


def _not_additive(differing: dict[str, float], rows: int, norms: Sequence[float]) -> str:
    return (
        f"Two workers would not train this model as one does. A step was tried on {rows} rows, whole and in two "
        f"shares, and the gradients differ: {_worst(differing)}. Their norm is {norms[0]:.4g} on all rows, "
        f"{norms[1]:.4g} and {norms[2]:.4g} on the shares. The loss, or a layer, computes over the rows of a batch "
        "together, as contrastive losses do, or adds a sum over rows to a mean over rows; expected is a mean or a sum. "
        "As a loss of the outputs, compile(loss=function), a loss over all rows is exact: let the model return what is "
        "compared. Or the program changes the gradients before it calls optimizer.apply. If it clips them, these rows "
        "have reached its limit, also if others never do, since they were chosen to differ much: let the optimizer "
        "clip, with global_clipnorm, clipnorm or clipvalue. Else use clusterSize=1, or a TFEstimator with a training "
        "loop of your own."
    )


def _worst(differing: dict[str, float]) -> str:
    """The variables that differ most, and by how much."""
    worst = sorted(differing, key=lambda name: -differing[name])[:3]
    examples = ", ".join(f"'{name}' by {differing[name]:.0%}" for name in worst)
    return examples + (", ..." if len(differing) > 3 else "")
