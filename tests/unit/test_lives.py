"""Who is alive, by a clock of the test's."""

import pytest

from tfos_ml.cluster.lives import PAUSE_SECONDS, Lives


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lives(clock):
    return Lives(clock)


def look_for(lives, clock, seconds, ranks, limit):
    """Let time pass while the driver looks each second; the last answer."""
    for _ in range(seconds):
        clock.now += 1
        found = lives.silent(ranks, limit)
    return found


def test_a_node_that_is_not_heard_of_is_silent_and_the_others_are_not(lives, clock):
    lives.heard(0, 0.0)
    lives.heard(1, 0.0)
    for _ in range(10):
        assert look_for(lives, clock, 1, {0, 1}, 10) == {}
        lives.heard(0, 0.0)
    assert look_for(lives, clock, 1, {0, 1}, 10) == {1: 11.0}
    assert lives.silent({0}, 10) == {}  # the other has gone


def test_a_pause_of_the_driver_is_not_the_nodes_silence(lives, clock):
    lives.heard(0, 0.0)
    look_for(lives, clock, 3, {0}, 10)
    clock.now += 1000 + PAUSE_SECONDS
    assert lives.silent({0}, 10) == {}
    assert look_for(lives, clock, 8, {0}, 10) == {0: 11.0}


def test_a_process_that_stands_still_since_a_collective_broke_is_told_from_one_that_lives(lives, clock):
    for rank in (0, 1, 2):
        lives.heard(rank, 0.0)
    clock.now += 20
    lives.heard(1, 0.5)
    lives.heard(2, 20.0)  # its supervisor lives, its process has been still for 20 s
    assert not lives.all_live(0, {0, 1, 2}, 6.0)
    assert lives.all_live(0, {0, 1}, 6.0)
    lives.heard(2, 0.0)
    assert lives.all_live(0, {0, 1, 2}, 6.0)


def test_a_process_that_has_ended_counts_as_alive(lives, clock):
    lives.heard(1, None)
    clock.now += 1
    assert lives.all_live(0, {0, 1}, 6.0)
