"""The promise of KerasEstimator: any number of workers ends with the weights of plain Keras."""

from __future__ import annotations

import functools
import json
import os
import re

import numpy as np
import pytest
from example_programs import EXAMPLES, hub
from keras_layers import LAYERS
from keras_processes import check, plain_fit, train
from keras_programs import PROGRAMS, TRIED
from keras_worker import CASES
from optimizer_programs import FAIL

# Plain Keras warns if the dicts of inputs differ in their order.
ORDER_OF_INPUTS = "ignore:(?s).*The structure of `inputs` doesn't match:UserWarning"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(ORDER_OF_INPUTS)]
IN_THREE = ["idle_layers", "two_rows"]
OFTEN = [  # each has something that no other, no class in make test's part of test_zoo.py and no other test has
    "sgd_momentum_clipped",  # clipping by norm, weights of rows and validation rows, regularizers
    "lstm_masked_steps",
    "mean_of_words",  # of texts padded to the longest of a step, of which the last has one row
    "evaluating_and_stopping_within",  # callbacks: one evaluates, and a subclass of EarlyStopping stops within an epoch
    "of_the_module",  # optimizers and a network that no model keeps
    "gathered",  # variables of TensorFlow's that only a step knows, and an exchange in a branch
    "thaw",  # a callback that compiles the model again
    "diffusion",  # draws, BatchNormalization, a moving average of weights
]
if "TFOS_ML_CORNER" in os.environ:  # old and new versions of Keras differ where losses, metrics and masks are
    OFTEN = [*OFTEN[:3], "counted_steps"]
RING = ["two_outputs"]
ELSEWHERE = {*hub.PROGRAMS, *FAIL}
RARE = [case for case in CASES if case not in {*OFTEN, *IN_THREE, *RING, *TRIED, *ELSEWHERE, "shuffle"}]
TOLD = {"local_statistics": "batchStatistics='local': 1 Batch", "rmse_metric": "Metrics ['rmse'] cannot be combined"}
TRAINED = {
    False: {1: ["shuffle"], 2: [*TOLD, *OFTEN], 3: [*IN_THREE, "shuffle"]},
    True: {
        1: ["sgd_momentum_clipped", "two_outputs", "mean_of_words", *EXAMPLES],
        2: [*RARE, *IN_THREE, *RING],
        3: [*((PROGRAMS | LAYERS | EXAMPLES).keys() - IN_THREE), "sgd_momentum_clipped", "lstm_masked_steps", *RING],
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory with weights and logs of all cases, trained by 1, 2 and 3 workers; chaos tests have their own."""
    return functools.cache(lambda is_chaos: train(TRAINED[is_chaos], tmp_path_factory.mktemp("trained")))


def cases_of(is_chaos):
    cases = {case for cases in TRAINED[is_chaos].values() for case in cases} - {"shuffle", *TOLD}
    return pytest.mark.parametrize("case", [case for case in CASES if case in cases])


@pytest.mark.corner("One, two and three workers end with the same weights")
@cases_of(False)
def test_every_number_of_workers_ends_like_plain_keras(trained, case):
    """Nothing faster proves it: the exchanges of real processes, in real steps, beside Keras's own."""
    check(trained(False), TRAINED[False], case)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@cases_of(True)
def test_more_cases_end_like_plain_keras(trained, case):
    check(trained(True), TRAINED[True], case)


@pytest.mark.chaos
@pytest.mark.skipif(not hub.IS_INSTALLED, reason="keras-hub is not installed")
@pytest.mark.timeout(1800)
def test_programs_on_kerashub_end_like_plain_keras(tmp_path):
    cases = {size: [*hub.PROGRAMS] for size in (1, 2, 3)}
    train(cases, tmp_path)
    for case in hub.PROGRAMS:
        check(tmp_path, cases, case)
        assert "NOTICE" not in said_of(tmp_path, case, 2)


@pytest.mark.parametrize(
    "case", ["once_by_hand", *(pytest.param(case, marks=pytest.mark.chaos) for case in ("compiled_within", "noise"))]
)
def test_what_cannot_be_exact_ends_in_that_step(case, tmp_path):
    with pytest.raises(AssertionError, match=f"ModelError: .*{re.escape(FAIL[case][2])}"):
        train({2: [case]}, tmp_path)


def test_with_tensorflows_own_operations(tmp_path):
    """As with GPUs."""
    train({2: RING}, tmp_path, communication="ring")
    for case in RING:
        check(tmp_path, {2: RING}, case)


def test_a_seeded_shuffle_is_the_same_for_every_number_of_workers(trained):
    trained = trained(False)
    in_order, _ = plain_fit("shuffle")
    with np.load(trained / "shuffle-1-0.npz") as file:
        alone = [file[name] for name in file.files]
    assert max(float(np.abs(a - b).max()) for a, b in zip(alone, in_order, strict=True)) > 1e-4
    with np.load(trained / "shuffle-3-0.npz") as file:
        own = [file[name] for name in file.files]
    assert max(float(np.abs(a - b).max()) for a, b in zip(own, alone, strict=True)) < 1e-5


def said_of(directory, case, size):
    """What the first worker has logged of a case."""
    log = (directory / f"log-{size}-0").read_text()
    return log[: log.index(f"{case} done")].rpartition(" done")[2]


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", [case for case in EXAMPLES if case not in OFTEN])
def test_nothing_is_told_of_an_example(trained, case):
    for size in (1, 2, 3):
        assert "NOTICE" not in said_of(trained(True), case, size)


def test_what_depends_on_the_number_of_workers_is_told_before_the_first_step(trained):
    """Metrics that cannot be added up, local statistics; nothing of what is exact."""
    for case, notice in TOLD.items():
        assert notice in said_of(trained(False), case, 2)
    for case in OFTEN:
        assert "NOTICE" not in said_of(trained(False), case, 2)
    rmse = [logs["rmse"] for logs in json.loads((trained(False) / "rmse_metric-2.json").read_text())]
    assert rmse == pytest.approx(plain_fit("rmse_metric")[1]["rmse"], abs=0.1)  # a mean of both workers' own
