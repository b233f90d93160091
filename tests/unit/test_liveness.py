"""Who is alive, by a clock of the test's."""

import pytest

from tfos_ml.common.timeouts import PAUSE_SECONDS
from tfos_ml.driver.liveness import Liveness
from tfos_ml.protocol.control_messages import Broken


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def liveness(clock):
    return Liveness(clock)


def look_for(liveness, clock, seconds, ranks, limit):
    """Let time pass while the driver looks each second; the last answer."""
    for _ in range(seconds):
        clock.now += 1
        found = liveness.silent(ranks, limit)
    return found


def test_a_node_that_is_not_heard_of_is_silent_and_the_others_are_not(liveness, clock):
    liveness.record(0, 0.0)
    liveness.record(1, 0.0)
    for _ in range(10):
        assert look_for(liveness, clock, 1, {0, 1}, 10) == {}
        liveness.record(0, 0.0)
    assert look_for(liveness, clock, 1, {0, 1}, 10) == {1: 11.0}
    assert liveness.silent({0}, 10) == {}  # the other has gone


def test_a_pause_of_the_driver_is_not_the_nodes_silence(liveness, clock):
    liveness.record(0, 0.0)
    look_for(liveness, clock, 3, {0}, 10)
    clock.now += 1000 + PAUSE_SECONDS
    assert liveness.silent({0}, 10) == {}
    assert look_for(liveness, clock, 8, {0}, 10) == {0: 11.0}


def test_a_process_that_stands_still_since_a_collective_broke_is_told_from_one_that_lives(liveness, clock):
    for rank in (0, 1, 2):
        liveness.record(rank, 0.0)
    clock.now += 20
    liveness.record(1, 0.5)
    liveness.record(2, 20.0)  # its supervisor lives, its process has been still for 20 s
    broken = Broken(6.0, 40.0)
    assert not liveness.is_cause(0, broken, {0, 1, 2})
    assert liveness.is_cause(0, broken, {0, 1})
    assert liveness.is_cause(0, Broken(41.0, 40.0), {0, 1, 2})  # its supervisor would have said so
    liveness.record(2, 0.0, is_failing=True)  # it has failed, and has not ended
    assert not liveness.is_cause(0, broken, {0, 1, 2})
    liveness.record(2, 0.0)
    assert liveness.is_cause(0, broken, {0, 1, 2})
    assert not liveness.is_cause(0, Broken(4.0, 40.0), {0, 1, 2})  # the failure of another may be on its way
    assert not liveness.is_cause(0, None, {0, 1, 2})
