"""Which node gets which partition: all alike, on the task's own host where that starves nobody."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tfos_ml.driver.partitions import Partitions

TWO_HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}


def commit(assigner, number, partition, rows):
    assigner.claim(number, partition, "task")
    assigner.commit(number, partition, "task", rows)


def feed(assigner, number, partitions, hosts=TWO_HOSTS):
    """One call: partitions, given as the host of their task and their rows, one after another."""
    assigner.open(number, hosts)
    ranks = []
    for partition, (host, rows) in enumerate(partitions):
        ranks.append(assigner.assign(number, partition, host))
        commit(assigner, number, partition, rows)
    assigner.close(number)
    return ranks


def rows_of(assigner, calls, partitions, hosts=TWO_HOSTS):
    """Rows that nodes have had after many equal calls."""
    given = Counter()
    for number in range(calls):
        for rank, (_, rows) in zip(feed(assigner, number, partitions, hosts), partitions, strict=True):
            given[rank] += rows
    return [given[rank] for rank in hosts]


def test_small_calls_on_one_host_go_round():
    assert rows_of(Partitions(), 12, [("a", 100)], dict.fromkeys(range(3), "a")) == [400, 400, 400]


def test_tasks_of_both_hosts_keep_to_their_own():
    assigner = Partitions()
    for number in range(5):
        ranks = feed(assigner, number, [("a", 100), ("b", 103), ("a", 97), ("b", 101)] * 3)
        assert [rank // 2 for rank in ranks] == [0, 1, 0, 1] * 3


@pytest.mark.parametrize("seed", range(20))
def test_partitions_of_one_call_differ_by_one_at_most_in_whatever_order_they_ask(seed):
    rng, assigner = random.Random(seed), Partitions()
    for number in range(20):
        assigner.open(number, TWO_HOSTS)
        partitions = [(p, rng.choice("ab"), rng.randint(1, 1000)) for p in range(rng.randint(1, 15))]
        rng.shuffle(partitions)
        counts, asked = Counter(), []
        for partition, host, rows in partitions:
            rank = assigner.assign(number, partition, host)
            counts[rank] += 1
            asked.append((partition, rank, rows))
            while asked and rng.random() < 0.5:  # committed in another order
                one, was, had = asked.pop(rng.randrange(len(asked)))
                assert assigner.assign(number, one, "a") == was  # another attempt
                commit(assigner, number, one, had)
                commit(assigner, number, one, had)
        assert max(counts.values()) - min(counts[rank] for rank in TWO_HOSTS) <= 1
        assigner.close(number)
    assert len(assigner) == 0


def test_calls_at_once_go_to_different_nodes():
    assigner = Partitions()
    for number in range(4):
        assigner.open(number, dict.fromkeys(range(4), "a"))
    assert sorted(assigner.assign(number, 0, "a") for number in range(4)) == [0, 1, 2, 3]


def test_nodes_that_read_no_further_get_nothing_while_others_do():
    assigner = Partitions()
    assigner.open(0, TWO_HOSTS)
    assert {assigner.assign(0, partition, "a", over={0, 1, 2}) for partition in range(5)} == {3}
    assert assigner.assign(0, 5, "a", over={0, 1, 2, 3}) in TWO_HOSTS
