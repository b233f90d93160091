"""Tries one step on a few rows, whole and in two shares, before the training begins.

What a custom layer, loss or ``train_step`` does across rows cannot be derived from its class. So the program itself is
tried: the gradients, metrics and assigned state of a step on all rows are compared with those that two workers would
combine from 5/8 and 3/8 of them. The :class:`Rules` of the training follow from what agrees; if nothing agrees, it is
an error. Afterwards the model is as before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras.batch_statistics import is_batch_normalization
from tfos_ml.keras.data_parallel import DataParallel, PassRules, Rules, metric_variables
from tfos_ml.keras.loss_terms import OUTPUT_LOSS
from tfos_ml.keras.metric_sums import leaf_metrics, numbers
from tfos_ml.keras.row_independence import draws_by_batch, is_row_by_row, refuse_float8
from tfos_ml.keras.tried_step import (
    ALL,
    FIRST,
    SECOND,
    Outcome,
    SharesOfGroup,
    TriedPassCounter,
    instead_of_updates,
    kept,
    unknown_to_keras,
)
from tfos_ml.worker import keras_privates

if TYPE_CHECKING:
    from tfos_ml.keras.training_data import TrainingData
    from tfos_ml.keras.worker_group import WorkerGroup

ROWS = 8
_TOLERANCE = 1e-3
_HALF_TOLERANCE = 5e-2  # of models that compute in 16 bits
_DRAWS = (
    "A training step draws random numbers that differ between workers: two steps on the same rows differed. Several "
    "workers do not train exactly what one does. Use keras.random with a keras.random.SeedGenerator of the layer."
)

_UNTRIED = (
    "It could not be checked before the training whether several workers train this model as one does: {}. "
    "To be sure, compare the result with that of a fit with clusterSize=1."
)
_LAYER_DRAWS = (
    "The layers {} draw random numbers for a batch as a whole, or take its first row for others: several workers train "
    "with other rows than one. Use layers that draw for each row, such as RandomRotation, or clusterSize=1."
)


def find_rules(model: keras.Model, data: TrainingData, group: WorkerGroup, tests: bool) -> Rules:
    """The rules of a training, found on the first worker with rows of several, and the same on all workers.

    `tests` is whether there are passes that only test the model.

    Raises ``ModelError`` if the results of several workers cannot be combined; if a step has shown that, on the first
    worker only.
    """
    if group.size == 1:
        return Rules()
    refuse_float8(model)
    drawing = draws_by_batch(model)
    notices = (_LAYER_DRAWS.format(drawing),) if drawing else ()
    if is_row_by_row(model):
        return Rules(notices=notices)
    element = data.varied_element(ROWS, group)
    rules = _try(model, element, tests) if group.rank == 0 else Rules()
    fields = _with_tuples(json.loads(group.broadcast_text(json.dumps(asdict(rules)), group.rank == 0)))
    if fields["together"] and not group.takes_any_shape:
        raise ModelError(
            "The loss computes over the rows of a batch together. KerasEstimator supports that only on CPUs with "
            "communication='auto'. Use that, or clusterSize=1."
        )
    fields["notices"] = (*notices, *fields["notices"])
    return Rules(**{**fields, "train": PassRules(**fields["train"]), "test": PassRules(**fields["test"])})


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_tuples(part) for name, part in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _try(model: keras.Model, element: Any, tests: bool) -> Rules:
    rows = int(tf.nest.flatten(element)[0].shape[0])
    if rows < 2:
        return Rules(notices=(_UNTRIED.format("the check needs two rows"),))
    try:
        with kept(model):
            return _DryRun(model, element, rows).rules(tests)
    except ModelError:
        raise
    except Exception as error:
        return Rules(notices=(_UNTRIED.format(f"a step on {rows} rows raised {type(error).__name__}: {error}"),))


class _DryRun:
    """Runs the step on all rows and on each share, and compares."""

    def __init__(self, model: keras.Model, element: Any, rows: int):
        self._model, self._rows = model, rows
        self._updated: list[str] = []  # variables, as of DataParallel
        self._is_uncertain = False  # if so, the nearest rule is taken
        first = math.ceil(rows * 5 / 8) if rows > 2 else 1
        bounds = ((0, rows), (0, first), (first, rows))
        self._parts = [tf.nest.map_structure(lambda t, a=a, b=b: t[a:b], element) for a, b in bounds]
        self._places = [(np.arange(a, b), np.array([b - a])) for a, b in bounds]
        self._weights = (first / rows, 1 - first / rows)
        is_half = any("16" in layer.compute_dtype for layer in keras_privates.all_layers(model))
        self._tolerance = _HALF_TOLERANCE if is_half else _TOLERANCE
        self._unknown = unknown_to_keras(model)
        self._variables = [*model.variables, *self._unknown, keras_privates.global_seed_state()]
        self._start = [np.asarray(v) for v in self._variables]

    def rules(self, tests: bool) -> Rules:
        outcomes = self._run(Rules())
        draws = self._is_uncertain = _differ(outcomes[ALL], self._run(Rules())[ALL])
        kinds = {name: self._kind(*(o.terms[name] for o in outcomes)) for name in outcomes[ALL].terms}
        of_outputs = {name for name, kind in kinds.items() if name.startswith(OUTPUT_LOSS) and kind != "sum"}
        rules = Rules(
            sums=tuple(name for name, kind in kinds.items() if kind == "sum"),
            together=tuple(sorted(name for name in of_outputs if not kinds[name])),
        )
        if rules.sums or rules.together:
            outcomes = self._run(rules)
        try:
            gradient_is_sum = self._gradient_is_sum(outcomes)
        except ModelError:  # a loss may be nearly a mean, and its gradient far from it
            if of_outputs <= set(rules.together):
                raise
            rules = replace(rules, together=tuple(sorted(of_outputs)))
            outcomes = self._run(rules)
            gradient_is_sum = self._gradient_is_sum(outcomes)
        if not draws:
            self._check_beside_keras(outcomes[ALL])
        assigned, notices = self._assigned(outcomes)
        return replace(
            rules,
            assigned=tuple(assigned),
            notices=tuple([*notices, _DRAWS] if draws else notices),
            gradient_is_sum=gradient_is_sum,
            whole_slices=tuple(self._whole_slices(outcomes)),
            train=self._of_pass(outcomes),
            test=self._of_pass(self._run(rules, "test_step")) if tests else PassRules(),
        )

    def _run(self, rules: Rules, step: str = "train_step") -> list[Outcome]:
        """The outcomes for all rows, and for both shares."""
        shares, model = SharesOfGroup(), self._model
        train, test = (TriedPassCounter(name, self._rows) for name in ("train", "test"))
        with instead_of_updates(model, lambda gradients, variables=None: None):
            parallel = DataParallel(model, shares, train, test, rules)  # type: ignore[arg-type]
            try:

                def outcome(part: int) -> Outcome:
                    train.rewind(*self._places[part])
                    test.rewind(*self._places[part])
                    return self._step(parallel, shares, step, part)

                return [outcome(part) for part in (ALL, FIRST, SECOND)]
            finally:
                self._updated = parallel.updated
                parallel.close()

    def _check_beside_keras(self, ours: Outcome) -> None:
        """Raise ``ModelError`` if the step on all rows has other gradients than Keras computes without our wrappers."""
        gradients: list[Any] = []
        self._begin()
        with instead_of_updates(self._model, lambda given, variables=None: gradients.extend(given)):
            self._model.train_step(self._parts[ALL])
        far = {}
        for name, gradient, expected in zip(self._updated, ours.gradients, gradients, strict=True):
            if expected is None:
                continue
            off, scale = np.abs(_dense(gradient) - _dense(expected)), np.abs(_dense(expected)).max(initial=0.0)
            if off.max(initial=0.0) > self._tolerance * scale + 1e-6:
                far[name] = float(off.max() / (scale + 1e-12))
        if far:
            raise ModelError(
                f"Two workers would not train this model as one does. On {self._rows} rows tfos_ml computes other "
                f"gradients than Keras alone: {_worst(far)}. Use clusterSize=1, and please report the model as a bug."
            )

    def _begin(self) -> None:
        """Give all variables the values that every step begins with."""
        for variable, value in zip(self._variables, self._start, strict=True):
            variable.assign(value)
        self._model.reset_metrics()

    def _step(self, parallel: DataParallel, shares: SharesOfGroup, step: str, part: int) -> Outcome:
        self._begin()
        shares.begin(part)
        logs = getattr(self._model, step)(self._parts[part])
        assert parallel.terms is not None
        return Outcome(
            {name: np.asarray(value, np.float64) for name, value in parallel.terms.values.items()},
            shares.gradients,
            [np.asarray(v, np.float64) for v in metric_variables(self._model)],
            [np.asarray(v) for v in [*self._model.variables, *self._unknown]],
            numbers(logs or {}),
            numbers(self._model.get_metrics_result()),
        )

    def _kind(self, whole: Any, first: Any, second: Any) -> str:
        """How the values of both shares combine to that of all rows: "mean", "sum", or "" for neither."""
        a, b = self._weights
        far = {"mean": a * first + b * second - whole, "sum": first + second - whole}
        distances = {kind: float(np.max(np.abs(off), initial=0.0)) for kind, off in far.items()}
        nearest = min(distances, key=lambda kind: distances[kind])
        room = self._tolerance * float(np.max(np.abs([whole, first, second]), initial=0.0)) + 1e-12
        return nearest if self._is_uncertain or distances[nearest] <= room else ""

    # Gradients

    def _gradient_is_sum(self, outcomes: Sequence[Outcome]) -> bool:
        wholes, firsts, seconds = ([_dense(g) for g in o.gradients] for o in outcomes)
        largest = max((float(np.abs(g).max(initial=0.0)) for g in wholes if g is not None), default=0.0)
        distances: dict[str, float] = {"mean": 0.0, "sum": 0.0}
        differing = {}
        for name, whole, first, second in zip(self._updated, wholes, firsts, seconds, strict=False):
            if whole is None or first is None or second is None:
                continue
            scale = max(float(np.abs(whole).max(initial=0.0)), 1e-3 * largest) + 1e-12
            a, b = self._weights
            off = {"mean": a * first + b * second - whole, "sum": first + second - whole}
            far = {kind: float(np.abs(d).max(initial=0.0)) / scale for kind, d in off.items()}
            distances = {kind: max(far[kind], worst) for kind, worst in distances.items()}
            if far["mean"] > self._tolerance:
                differing[name] = far["mean"]
        nearest = min(distances, key=lambda kind: distances[kind])
        if distances[nearest] > self._tolerance and not self._is_uncertain:
            raise ModelError(_not_additive(differing, self._rows))
        return nearest == "sum"

    def _whole_slices(self, outcomes: Sequence[Outcome]) -> Iterator[int]:
        for i, gradients in enumerate(zip(*(o.gradients for o in outcomes), strict=False)):
            if not all(isinstance(g, tf.IndexedSlices) for g in gradients):
                continue
            whole, first, second = (np.asarray(g.indices) for g in gradients)
            if np.array_equal(whole, first) and np.array_equal(whole, second):
                yield i
            elif len(whole) != len(first) + len(second):
                name = self._updated[i]
                raise ModelError(
                    f"A step reads the table {name!r} both at indices from rows and at other indices: {len(whole)} "
                    f"entries for {self._rows} rows, {len(first)} and {len(second)} for two shares of them. "
                    "Several workers cannot combine such gradients exactly. Use a separate table for lookups "
                    "that do not depend on rows, or clusterSize=1."
                )

    # Metrics and state

    def _of_pass(self, outcomes: Sequence[Outcome]) -> PassRules:
        places = {id(v): i for i, v in enumerate(metric_variables(self._model))}
        of_losses = list(getattr(keras_privates.compiled_loss(self._model), "metrics", ()))
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
        return PassRules(tuple(by_step), own, summed, tuple(_renamed(own, outcomes)), tuple(inexact))

    def _adds(self, place: int, outcomes: Sequence[Outcome]) -> str:
        """Like :meth:`_kind`, but "sum" if both are possible."""
        whole, first, second = (o.metrics[place] for o in outcomes)
        if np.allclose(first + second, whole, rtol=self._tolerance, atol=1e-7):
            return "sum"
        return self._kind(whole, first, second)

    def _assigned(self, outcomes: Sequence[Outcome]) -> tuple[list[int], list[str]]:
        """Which variables the step assigns, without BatchNormalization's; notices of those that are not exact."""
        known = {id(v) for layer in keras_privates.all_layers(self._model) for v in _statistics(layer)}
        known |= {id(v) for v in metric_variables(self._model)}
        variables = self._model.variables
        assigned, means, own = [], [], []
        for i, variable in enumerate([*variables, *self._unknown]):
            whole, first, second = (o.state[i] for o in outcomes)
            if id(variable) in known or np.array_equal(whole, self._start[i]):
                continue
            if i < len(variables) and "float" in variable.dtype:
                assigned.append(i)
                if self._kind(whole, first, second) != "mean":
                    means.append(variable.path)
            elif not (np.array_equal(whole, first) and np.array_equal(whole, second)):
                own.append(getattr(variable, "path", variable.name))
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


def _dense(gradient: Any) -> Any:
    return None if gradient is None else np.asarray(tf.convert_to_tensor(gradient), np.float64)


def _differ(once: Outcome, again: Outcome) -> bool:
    """Whether two steps on the same rows differ, because they draw random numbers."""
    pairs = zip(once.gradients, again.gradients, strict=True)
    return any(g is not None and not np.allclose(_dense(g), _dense(h), rtol=1e-4) for g, h in pairs)


def _not_additive(differing: dict[str, float], rows: int) -> str:
    return (
        f"Two workers would not train this model as one does. A step was tried on {rows} rows, whole and in two "
        f"shares, and the gradients differ: {_worst(differing)}. The loss, or a layer, computes over the rows of a "
        "batch together, as contrastive losses do, or adds a sum over rows to a mean over rows; expected is a mean or "
        "a sum. Or the program changes the gradients before it calls optimizer.apply: let the optimizer clip them, "
        "with global_clipnorm, clipnorm or clipvalue. Else use clusterSize=1, or a TFEstimator with a training loop of "
        "your own."
    )


def _worst(differing: dict[str, float]) -> str:
    """The variables that differ most, and by how much."""
    worst = sorted(differing, key=lambda name: -differing[name])[:3]
    examples = ", ".join(f"'{name}' by {differing[name]:.0%}" for name in worst)
    return examples + (", ..." if len(differing) > 3 else "")
