"""A program is exact on several workers, or its user is told before the first step: tried in one process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras_programs import batch_normalized, loss_of_own_step, numbers, small, unlabeled_images
from keras_worker import worker_context
from wrong_programs import ERROR, ROWS, WRONG, clipped_by_hand, counting

from tfos_ml.data import spool
from tfos_ml.errors import ModelError
from tfos_ml.keras import privates
from tfos_ml.keras.build import build
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.model.inspection import describe
from tfos_ml.keras.probe import plan as probe
from tfos_ml.keras.probe.one_step import SharesOfGroup
from tfos_ml.keras.probe.varied_rows import gather_varied_rows
from tfos_ml.keras.step import data_parallel
from tfos_ml.keras.step.reduction_plan import ReductionPlan
from tfos_ml.keras.step.variables import TrainingVariables
from tfos_ml.keras.training_data import TrainingData

pytestmark = pytest.mark.slow


def rows_of(model, data, directory):
    ctx = worker_context(data, 0, 1, False, spool.SpoolDirectories(directory, directory))
    return TrainingData(ctx, WorkerGroup(0, 1, 10.0), model, describe(model), {})


def told(make, data, directory):
    """What the try of a step says of a model, as its error or as its notices."""
    keras.utils.set_random_seed(1)
    model = make()
    rows = rows_of(model, data, directory)
    privates.symbolic_build(model, rows.element_spec())
    try:
        element = gather_varied_rows(rows, probe.ROWS, WorkerGroup(0, 1, 10.0))
        variables = TrainingVariables.of_step(model, rows.element_spec())
        plan = probe._try(variables, element, bool(rows.validation.total))
    except ModelError as error:
        return str(error)
    inexact = {*(plan.train.inexact or ()), *(plan.test.inexact or ())}
    return " ".join([*plan.notices, *sorted(inexact)])


@pytest.mark.parametrize("program", WRONG)
def test_what_is_not_exact_is_told(program, tmp_path: Path):
    make, said = WRONG[program]
    data = ROWS.get(program, numbers)()
    text = told(make, data, tmp_path)
    if said:
        assert said in text
    else:
        assert text == ""


def test_a_validation_that_cannot_run_fails_before_the_first_step(tmp_path):
    data, model = {**unlabeled_images(), "val": np.arange(41) % 5 == 2}, loss_of_own_step()  # which has no test_step
    with pytest.raises(ModelError, match=r"Define test_step, .* None values not supported"):
        build(model, rows_of(model, data, tmp_path), has_call=True)


def test_an_evaluation_does_not_ask_what_a_training_would_do(tmp_path):
    keras.utils.set_random_seed(1)
    model = clipped_by_hand()
    rows = rows_of(model, numbers(), tmp_path)
    privates.symbolic_build(model, rows.element_spec())
    variables = TrainingVariables.of_step(model)
    element = gather_varied_rows(rows, probe.ROWS, WorkerGroup(0, 1, 10.0))
    assert probe._try(variables, element, tests=True, trains=False).test.inexact == ()
    with pytest.raises(ModelError, match=ERROR):
        probe._try(variables, element, tests=True)


def test_a_tried_step_changes_no_variable_of_tensorflow(tmp_path):
    model = counting(True, None)
    assert "each keeps those of its own rows" in told(lambda: model, numbers(), tmp_path)
    assert model.layers[1].count.numpy() == 0


def test_layers_in_float8_are_refused():
    policy = keras.dtype_policies.get("float8_from_float32")
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, dtype=policy, name="small")])
    with pytest.raises(ModelError, match=r"\['small'\] compute in float8"):
        probe.find_plan(TrainingVariables(model, [], []), None, SimpleNamespace(size=2), tests=False)


def test_a_bug_of_our_own_is_found(tmp_path, monkeypatch):
    """Moments of a worker's own rows."""
    assert told(batch_normalized, numbers(), tmp_path) == ""
    monkeypatch.setattr(data_parallel, "global_moments", lambda layer, plain, group, weights: plain)
    assert ERROR in told(batch_normalized, numbers(), tmp_path)


def test_a_callback_that_trains_is_an_error(tmp_path: Path):
    keras.utils.set_random_seed(1)
    model, x, y = small(), np.ones((2, 4), "f"), np.ones((2, 1), "f")
    rows = rows_of(model, numbers(), tmp_path)
    variables = TrainingVariables.of_step(model, rows.element_spec())
    parallel = data_parallel.DataParallel(variables, SharesOfGroup(), ReductionPlan(), lambda trains: None)
    trains = ("fit", "train_on_batch", "test_on_batch")
    for name in trains:
        with pytest.raises(ModelError, match=rf"A callback calls model.{name}\(\), .* in a train_step of the model"):
            getattr(model, name)(x, y)
    model.predict(x, verbose=0)
    parallel.close()
    for name in trains:
        getattr(model, name)(x, y)
