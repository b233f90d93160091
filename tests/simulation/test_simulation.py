"""Thousands of schedules of one fit each, one seed a schedule: ``TFOS_ML_SCHEDULES=100000`` says how many."""

import os

import pytest
from schedules import Played, drawn
from substrate import simulated

SCHEDULES = int(os.environ.get("TFOS_ML_SCHEDULES", "1500"))


@pytest.fixture(autouse=True)
def _simulated():
    with simulated():
        yield


@pytest.mark.timeout(3600)
def test_every_schedule_ends_as_it_must():
    for seed in range(SCHEDULES):
        Played(drawn(seed)).play()


def test_a_seed_is_always_the_same_schedule():
    traces = [Played(drawn(seed)).play().world.trace for seed in (3, 3)]
    assert traces[0] == traces[1]
    assert len(traces[0]) > 3
