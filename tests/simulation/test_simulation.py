"""Thousands of schedules, one seed each: ``TFOS_ML_SCHEDULES=100000`` says how many."""

import os
from dataclasses import replace

import pytest
from fits import Fit
from schedule import Fault, drawn
from substrate import simulated

from tfos_ml import errors

SCHEDULES = int(os.environ.get("TFOS_ML_SCHEDULES", "1500"))


@pytest.fixture(autouse=True)
def _simulated():
    with simulated():
        yield


@pytest.mark.timeout(3600)
def test_every_schedule_ends_as_it_must():
    for seed in range(SCHEDULES):
        Fit(drawn(seed)).play()


def test_a_seed_is_always_the_same_schedule():
    traces = [Fit(drawn(seed)).play().world.trace for seed in (3, 3)]
    assert traces[0] == traces[1]
    assert len(traces[0]) > 3


class TestFound:
    """Schedules that have found a bug."""

    def test_an_elastic_fit_ends_when_no_executor_comes_back(self):
        lost = Fault("host lost", 3.8, 1)
        schedule = replace(drawn(732), hosts=1, slots=2, replaced=0.0, faults=(lost,), least=1)
        fit = Fit(schedule).play()
        assert isinstance(fit.error, errors.NotEnoughSlotsError)
        assert "NodeLostError" in str(fit.error)
