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


@pytest.mark.parametrize("seed", range(5))
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


def test_tasks_of_both_hosts_keep_to_their_own():
    assigner = Partitions()
    assigner.open(0, TWO_HOSTS)
    ranks = [assigner.assign(0, partition, "ab"[partition % 2]) for partition in range(12)]
    assert [rank // 2 for rank in ranks] == [0, 1] * 6
