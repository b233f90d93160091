"""``evaluate`` on several workers has the results of Keras in one process; states that do not add up are an error."""

from __future__ import annotations

import json
import math

import pytest
from example_programs import hub
from keras_processes import plain_evaluation, train
from keras_programs import TRIED
from keras_worker import CASES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:(?s).*The structure of `inputs` doesn't match:UserWarning"),  # of plain Keras
]
OFTEN = [  # masks and weights of steps, other denominators, a sum; e2e/test_evaluate.py has several outputs and counts
    "lstm_masked_steps",
    "loss_mean_with_sample_weight",
    "added_sum",
]
INEXACT: set[str] = {"rmse_metric"}
EVALUATED = {
    False: {2: [*OFTEN, *sorted(INEXACT)]},
    True: {3: [case for case in CASES if case not in {*TRIED, *hub.PROGRAMS}]},
}


class Evaluated:
    """Results of all cases; those of the chaos tests apart."""

    def __init__(self, factory):
        self._factory, self._done = factory, {}

    def __getitem__(self, is_chaos):
        if is_chaos not in self._done:
            self._done[is_chaos] = train(EVALUATED[is_chaos], self._factory.mktemp("evaluated"), evaluates=True)
        return self._done[is_chaos]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    return Evaluated(tmp_path_factory)


def check(directory, size, case):
    try:
        expected = plain_evaluation(case)
    except ValueError as error:  # a model that has only a train_step
        expected = {"error": str(error)}
    for rank in range(size):
        found = json.loads((directory / f"{case}-{size}-{rank}.json").read_text())
        if "error" in expected:
            assert found["error"].partition("\n")[0] == expected["error"].partition("\n")[0]
            continue
        assert found.keys() == expected.keys(), (rank, found)
        for name, value in expected.items():
            assert math.isclose(found[name], value, rel_tol=1e-6, abs_tol=1e-6), (rank, name, found[name], value)


@pytest.mark.parametrize("case", OFTEN)
def test_two_workers_evaluate_as_keras_does(evaluated, case):
    check(evaluated[False], 2, case)


@pytest.mark.parametrize("case", sorted(INEXACT))
def test_a_metric_that_does_not_add_up_is_an_error_that_names_it(evaluated, case):
    found = json.loads((evaluated[False] / f"{case}-2-0.json").read_text())
    assert "Metrics ['rmse'] cannot be combined exactly from the results of 2 nodes" in found["error"]


@pytest.mark.chaos
@pytest.mark.parametrize("case", EVALUATED[True][3])
def test_three_workers_evaluate_as_keras_does(evaluated, case):
    check(evaluated[True], 3, case)
