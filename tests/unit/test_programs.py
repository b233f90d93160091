"""Programs of the kinds that keras.io shows: on any number of workers they end like plain Keras, without a warning."""

from __future__ import annotations

import pytest
from example_programs import EXAMPLES, hub
from keras_processes import check, train

# Plain Keras warns if the dicts of inputs differ in their order.
ORDER_OF_INPUTS = "ignore:(?s).*The structure of `inputs` doesn't match:UserWarning"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings(ORDER_OF_INPUTS)]
OFTEN = [  # each has something that no case of test_exactness.py has
    "diffusion",  # draws, BatchNormalization, a moving average of weights
    "feature_space",  # columns of several types
    "outputs_with_row_weights",  # weights of rows by output
    "variational_autoencoder",  # a log of another name than its metric
    "wasserstein_gan",  # the gradient of a gradient, three updates a step
]
ALL = {size: [*EXAMPLES] for size in (1, 2, 3)}
ON_KERASHUB = {size: [*hub.PROGRAMS] for size in (1, 2, 3)}


def trained(cases_by_size, directory):
    """Train; no worker may warn of a difference."""
    train(cases_by_size, directory)
    for log in directory.glob("log-*"):
        assert "NOTICE" not in log.read_text()
    return directory


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    return trained({2: OFTEN}, tmp_path_factory.mktemp("often"))


@pytest.fixture(scope="module")
def on_any(tmp_path_factory):
    return trained(ALL, tmp_path_factory.mktemp("all"))


@pytest.fixture(scope="module")
def on_kerashub(tmp_path_factory):
    return trained(ON_KERASHUB, tmp_path_factory.mktemp("kerashub"))


@pytest.mark.parametrize("case", OFTEN)
def test_two_workers_end_like_plain_keras(on_two, case):
    check(on_two, {2: OFTEN}, case)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", EXAMPLES)
def test_any_number_of_workers_ends_like_plain_keras(on_any, case):
    check(on_any, ALL, case)


@pytest.mark.chaos
@pytest.mark.skipif(not hub.IS_INSTALLED, reason="keras-hub is not installed")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", hub.PROGRAMS)
def test_a_program_on_kerashub_ends_like_plain_keras(on_kerashub, case):
    check(on_kerashub, ON_KERASHUB, case)
