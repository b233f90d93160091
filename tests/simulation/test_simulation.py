"""Thousands of schedules, one seed each. A violation names its seed; ``play(seed)`` plays it again."""

import warnings
from dataclasses import replace

import pytest
from clusters import Cluster
from fences import Attempts
from fits import Fit
from schedule import LEASE, Fault, drawn
from simulated_network import Weather
from substrate import simulated

from tfos_ml import errors
from tfos_ml.protocol.cluster_template import make_template

LARGE = 200
SCHEDULES, MANY = 1_000, 100_000


@pytest.fixture(autouse=True)
def _simulated():
    with simulated(), warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.NodeEndedWarning)
        yield


def play(seed):
    """Of four schedules, three are fits; of 200, one has 64 nodes."""
    return (Fit if seed % 4 else Cluster)(drawn(seed, 64 if seed % LARGE == 1 else None)).play()


@pytest.mark.parametrize(
    "seeds", [range(SCHEDULES), pytest.param(range(SCHEDULES, MANY), marks=pytest.mark.chaos)], ids=["some", "many"]
)
@pytest.mark.timeout(3600)
def test_every_schedule_ends_as_it_must(seeds):
    for seed in seeds:
        play(seed)


def test_attempts_that_nobody_could_end_leave_one_line_of_checkpoints():
    for seed in range(SCHEDULES):
        Attempts(seed).play()


def test_a_seed_is_always_the_same_schedule():
    traces = [[play(seed).world.trace for seed in range(8)] for _ in range(2)]
    assert traces[0] == traces[1]
    assert sum(map(len, traces[0])) > 30


def test_an_elastic_fit_ends_when_no_executor_comes_back():
    lost = Fault("host lost", 3.8, 1)
    schedule = replace(drawn(732), hosts=1, late=None, slots=2, replaced=0.0, faults=(lost,), least=1)
    fit = Fit(schedule).play()
    assert isinstance(fit.error, errors.NotEnoughSlotsError)
    assert "NodeLostError" in str(fit.error)


def test_a_fit_ends_whose_results_spark_has_lost_with_all_executors():
    error = Fit(drawn(2_276_838)).play().error
    assert isinstance(error, errors.NotEnoughSlotsError)
    assert "Spark has lost what they returned" in str(error)


CALM = replace(drawn(0), template=make_template(2), hosts=2, late=None, slots=1, weather=Weather())


def test_a_node_that_is_lost_is_named_where_spark_repeats_no_task():
    lost = Fault("host lost", 4.0, 1)
    error = Fit(replace(CALM, least=2, failures=1, max_restarts=0, is_barrier=False, faults=(lost,))).play().error
    assert isinstance(error, errors.NodeLostError)
    assert (error.role, error.index) == ("worker", 1)


@pytest.mark.parametrize("at", [1.0, 6.0])
def test_a_fed_node_all_of_whose_processes_die_is_lost_long_before_its_lease(at):
    cluster = Cluster(replace(CALM, speculation=0.0, failures=1, faults=(Fault("host lost", at, 1),))).play()
    assert (cluster.error.role, cluster.error.index) == ("worker", 1)
    (ended,) = [when for when, *what in cluster.world.trace if what[:2] == ["run", "ends"]]
    assert ended - at < LEASE


def test_a_node_that_stands_before_all_have_met_is_named():
    stands = Fault("supervisor stands", 2.7, 1, 60.0)
    error = Fit(replace(drawn(57235), max_restarts=0, least=2, faults=(stands,))).play().error
    assert isinstance(error, errors.ReservationTimeoutError)
    assert "['worker:1']" in str(error)
