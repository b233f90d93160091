"""Runs one step of training that changes nothing: on all rows, and on shares of them as each of two workers would."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfos_ml.common.heap import return_memory
from tfos_ml.errors import ModelError
from tfos_ml.keras import privates
from tfos_ml.keras.checkpoint.state import random_state, set_random_state
from tfos_ml.keras.probe.gradients import Gradient, differ, sketch
from tfos_ml.keras.step.data_parallel import DataParallel
from tfos_ml.keras.step.metrics import numbers
from tfos_ml.keras.step.optimizers import intercepted
from tfos_ml.keras.step.random_draws import NOT_BY_ROW, RowsOfStep
from tfos_ml.keras.step.reduction_plan import ReductionPlan
from tfos_ml.keras.step.variables import TrainingVariables, metric_variables, value_of
from tfos_ml.worker.global_batches import Step

NOISE = 0.05  # standard deviation of noise added to weights: too much agrees at zero
_AT_ONCE = 1 << 20  # numbers of noise
_LATE = 999_999  # steps: beyond warm-ups; and what happens after every 10, 100 or 1,000 steps happens in the next one
ALL, FIRST, SECOND = range(3)


@contextlib.contextmanager
def restoring(variables: TrainingVariables) -> Iterator[None]:
    """Change the weights within the context, and restore the model afterwards."""
    everything = [*variables.shared, *variables.seeds, *metric_variables(variables.model)]
    before = [(v, tf.convert_to_tensor(v)) for v in {id(v): v for v in everything}.values()]
    random, drawn = np.random.default_rng(0), random_state()
    try:
        for variable in variables.model.trainable_variables:
            _add_noise(variable, random)
        with privates.with_lean_adapters(variables.model):
            yield
    finally:
        set_random_state(drawn)
        for variable, value in before:
            variable.assign(value)
        return_memory()


def _add_noise(variable: Any, random: np.random.Generator) -> None:
    value = np.array(variable)
    flat = value.reshape(-1)
    for part in np.split(flat, range(_AT_ONCE, len(flat), _AT_ONCE)):
        part += (NOISE * random.standard_normal(len(part), np.float32)).astype(part.dtype)
    variable.assign(value)


class SharesOfGroup:
    """Stands in for the group of workers: gives a share the sums of the step on all rows."""

    size = 2

    def __init__(self) -> None:
        self._sums: list[Any] = []
        self.gradients: list[Gradient | None] = []  # of the last step

    def begin(self, part: int) -> None:
        """Begin a step on all rows, or on a share of those of the last such step."""
        self._part, self._at, self.gradients = part, 0, []
        if part == ALL:
            self._sums.clear()

    def all_reduce(self, value: tf.Tensor, name: str, op: str = "Add") -> tf.Tensor:
        """As of ``WorkerGroup``; the sum is the value of the step on all rows."""
        if self._part == ALL:
            self._sums.append(value)
        self._at += 1
        return self._sums[self._at - 1]

    def all_sum_gradients(self, gradients: Sequence[Any], *arguments: Any, **options: Any) -> list[Any]:
        """As of ``WorkerGroup``; notes the gradients and sums nothing."""
        self.gradients += map(Gradient.of, gradients)
        return list(gradients)


def tried_rows() -> Callable[[tf.Tensor, tf.Tensor], RowsOfStep]:
    """Makes the rows of steps that run outside of TensorFlow's graphs, where all shapes are known.

    Random numbers for rows have another first dimension in a share than in the whole; the whole runs first.
    """
    of_all: list[int] = []

    def rows_of(places: tf.Tensor, total: tf.Tensor) -> RowsOfStep:
        if len(places) == total:
            of_all.clear()
        return _TriedRows(places, total, of_all)

    return rows_of


class _TriedRows(RowsOfStep):
    def __init__(self, places: tf.Tensor, total: tf.Tensor, of_all: list[int]):
        super().__init__(places, total)
        self._of_all, self._is_whole, self._part = of_all, len(places) == total, Fraction(len(places), int(total))

    def _is_of_rows(self, shape: Any) -> bool:
        first = int(shape[0]) if len(shape) else 0
        if self._is_whole:
            self._of_all.append(first)
            return False
        of_all = self._of_all[len(self.drawn)] if len(self.drawn) < len(self._of_all) else first
        if first not in (of_all, of_all * self._part):
            raise ModelError(NOT_BY_ROW)
        return first != of_all


@dataclass(frozen=True)
class Outcome:
    """The results of a step on some rows, before any plan."""

    terms: dict[str, Any]
    metrics: list[Any]
    state: dict[int, Any]  # sketches of what the step has assigned, by the position of the variable
    logs: dict[str, float]
    results: dict[str, float]  # of metrics
    drawn: list[bool]  # whether each draw was one for rows
    updated: list[str]  # paths of variables
    gradients: list[Gradient | None]  # of these variables

    def is_like(self, other: Outcome) -> bool:
        """Whether another step on the same rows has computed and assigned the same, whatever its metrics."""
        return (
            self.state.keys() == other.state.keys()
            and all(np.array_equal(value, other.state[i]) for i, value in self.state.items())
            and self.terms.keys() == other.terms.keys()
            and all(np.allclose(value, other.terms[name], rtol=1e-6) for name, value in self.terms.items())
            and not differ(self.gradients, other.gradients)
        )


Try: TypeAlias = list[Outcome]  # of a step on all rows, and on both shares


class StepTrials:
    """Runs one step of a model on all rows, and on two shares of them, always from the same values of all variables.

    `weights` are the parts of the rows that the shares have. `variables` are those that a step may assign, and `start`
    has the values with which it begins, of these and of further variables.
    """

    def __init__(self, variables: TrainingVariables, element: Any, rows: int):
        self._trained, self._model = variables, variables.model
        first = math.ceil(rows * 5 / 8) if rows > 2 else 1
        bounds = ((0, rows), (0, first), (first, rows))
        self._parts = [tf.nest.map_structure(lambda t, a=a, b=b: t[a:b], element) for a, b in bounds]
        self._steps = [Step(*map(tf.constant, (np.int64(0), np.int64(rows), np.arange(a, b)))) for a, b in bounds]
        self.weights = (first / rows, 1 - first / rows)
        self.variables = variables.of_program
        self._all = [*self.variables, *variables.scalars, privates.global_seed_state()]
        self.start = [tf.convert_to_tensor(v) for v in self._all]

    def tries(self, plan: ReductionPlan) -> list[Try]:
        """The outcomes of the first step, and of one as if many had been done, unless that does the same."""
        early = self.run(plan)
        start = self.start
        self.start = [self._later(i, early[ALL]) for i in range(len(self._all))]
        try:
            (late,) = self.run(plan, parts=(ALL,))
            return [early] if late.is_like(early[ALL]) else [early, self.run(plan)]
        except Exception:  # a number that only seems to count steps
            return [early, early]
        finally:
            self.start = start

    def _later(self, place: int, early: Outcome) -> Any:
        """The value that a variable may have after many steps: a number of steps, or the weight of a loss."""
        start = self.start[place]
        if start.shape.rank or place == len(self._all) - 1:
            return start
        value = np.asarray(start)
        is_of_optimizer = place >= len(self.variables)
        if value.dtype.kind in "iu":
            counts = is_of_optimizer or early.state.get(place) == value + 1
            return value.dtype.type(min(_LATE, np.iinfo(value.dtype).max)) if counts else value
        is_zero_weight = not is_of_optimizer and value == 0 and place not in early.state
        return np.ones_like(value) if is_zero_weight and value.dtype.kind == "f" else value

    def run(self, plan: ReductionPlan, step: str = "train_step", parts: Sequence[int] = (ALL, FIRST, SECOND)) -> Try:
        """The outcomes for all rows, and for both shares."""
        shares = SharesOfGroup()
        with intercepted(lambda *update: None):
            parallel = DataParallel(
                self._trained,
                shares,  # type: ignore[arg-type]
                plan,
                stand_in=lambda trains: None,
                rows_of=tried_rows(),
            )
            try:
                return [self._step(parallel, shares, step, part) for part in parts]
            finally:
                parallel.close()

    def _step(self, parallel: DataParallel, shares: SharesOfGroup, step: str, part: int) -> Outcome:
        for variable, value in zip(self._all, self.start, strict=True):
            variable.assign(value)
        self._model.reset_metrics()
        shares.begin(part)
        logs = getattr(self._model, step)((self._parts[part], self._steps[part]))
        assert parallel.terms is not None
        values = map(value_of, self.variables)
        return Outcome(
            {name: np.asarray(value, np.float64) for name, value in parallel.terms.values.items()},
            [np.asarray(v, np.float64) for v in metric_variables(self._model)],
            {i: sketch(v) for i, v in enumerate(values) if not np.array_equal(v, self.start[i])},
            numbers(logs or {}),
            numbers(self._model.get_metrics_result()),
            parallel.rows_of_step.drawn,
            parallel.updated,
            shares.gradients,
        )
