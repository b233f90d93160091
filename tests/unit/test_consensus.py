"""What nodes agree on, each by exchanges of its own, and when one that does not train is ended."""

import threading
import time

import pytest
from node_tasks import make_task

from tfos_ml.agent.consensus import Consensus
from tfos_ml.agent.grace_period import GracePeriod
from tfos_ml.agent.identity import identity_of
from tfos_ml.agent.rendezvous import Rendezvous
from tfos_ml.protocol import messages as m
from tfos_ml.protocol.control_messages import Ending, ProgressAnswer
from tfos_ml.protocol.graces import Graces, Limit
from tfos_ml.protocol.template import make_template

DEADLINE = 10.0


class Gather:
    """Exchanges between threads, one after the other, as Spark's barrier coordinator makes them."""

    def __init__(self, size):
        self._barrier = threading.Barrier(size, timeout=DEADLINE)
        self._messages = {}

    def of(self, rank):
        gather = self

        class Placement:
            def allGather(self, message=""):
                gather._messages[rank] = message
                gather._barrier.wait()
                found = [gather._messages[other] for other in range(gather._barrier.parties)]
                gather._barrier.wait()
                return found

        return Placement()


class Nodes:
    """All nodes of a cluster, played by one thread; each has one row more than its rank."""

    def __init__(self, template):
        gather = Gather(template.size)
        self.sent = [[] for _ in template.nodes]
        self.nodes = []
        for rank in range(template.size):
            member = identity_of(make_task(template=template), rank, "127.0.0.1")
            self.nodes.append(Consensus(Rendezvous(gather.of(rank)), member, self.sent[rank].append, lambda: None))

    def advance(self, until, ended=(), working=()):
        deadline = time.monotonic() + DEADLINE
        while not until():
            assert time.monotonic() < deadline
            for rank, node in enumerate(self.nodes):
                counts = m.RowCounts("AAAA", rows={"train": rank + 1})
                node.advance(lambda counts=counts: counts, rank + 1 if rank in ended else None, rank in working)
            time.sleep(0.01)

    def last(self):
        return [sent[-1] if sent else None for sent in self.sent]

    def agree(self):
        self.advance(lambda: all(self.sent))


@pytest.fixture
def workers():
    nodes = Nodes(make_template(3))
    nodes.agree()
    return nodes


def test_all_get_the_row_counts_of_all(workers):
    expected = m.Agreement({f"worker:{i}": m.RowCounts("AAAA", rows={"train": i + 1}) for i in range(3)})
    assert workers.last() == [expected] * 3


def test_all_pass_a_barrier_that_all_have_reached(workers):
    for node in workers.nodes:
        node.reach_barrier("start")
    workers.advance(lambda: all(isinstance(last, m.BarrierPassed) for last in workers.last()))
    assert workers.last() == [m.BarrierPassed("start", None)] * 3


def test_a_barrier_that_one_has_not_reached_says_who_is_where(workers):
    workers.nodes[0].reach_barrier("start")
    workers.nodes[1].reach_barrier("end")
    workers.advance(lambda: all(isinstance(last, m.BarrierPassed) for last in workers.last()[:2]), ended={2})
    assert "'worker:1': \"is at barrier 'end'\", 'worker:2': 'has ended'" in workers.last()[0].error
    assert "'worker:0': \"is at barrier 'start'\", 'worker:2': 'has ended'" in workers.last()[1].error


def test_the_cluster_is_done_when_all_have_ended(workers):
    workers.advance(lambda: all(node.done_since for node in workers.nodes), ended={0, 1, 2})
    assert workers.last() == [m.ClusterDone()] * 3
    assert [node.total_rows for node in workers.nodes] == [6] * 3


def test_servers_wait_for_helpers_that_still_work():
    """Ranks: a parameter server, the chief, a worker that works by itself."""
    nodes = Nodes(make_template(3, num_ps=1, master_node="chief"))
    nodes.agree()
    nodes.advance(lambda: all(node.trained_since for node in nodes.nodes), ended={1}, working={2})
    assert isinstance(nodes.last()[2], m.ClusterDone)
    assert not any(node.done_since for node in nodes.nodes)
    assert isinstance(nodes.last()[0], m.Agreement)
    nodes.advance(lambda: all(node.done_since for node in nodes.nodes), ended={1})
    assert nodes.last() == [m.ClusterDone()] * 3


class Ended:
    """What a consensus says of the end."""

    trained_since, done_since = 10.0, 20.0


PS, CHIEF, EVALUATOR, WORKER = range(4)


@pytest.mark.parametrize(
    ("rank", "since", "seconds"), [(PS, 20.0, 1.0), (EVALUATOR, 20.0, 2.0), (WORKER, 10.0, 3.0)], ids=str
)
def test_the_grace_of_a_passive_node_begins_when_nothing_is_left_for_it(rank, since, seconds):
    template = make_template(4, num_ps=1, master_node="chief", eval_node=True)
    task = make_task(template=template, graces=Graces(worker=3.0, server=1.0, evaluator=2.0))
    grace = GracePeriod(identity_of(task, rank, "127.0.0.1"), waits_for_program=False)
    assert (grace.since(Ended), grace.limit.seconds) == (since, seconds)


def test_servers_of_a_program_stay_until_it_shuts_the_cluster_down():
    task = make_task(template=make_template(2, num_ps=1))
    grace = GracePeriod(identity_of(task, 0, "127.0.0.1"), waits_for_program=True)
    grace.take_answer(ProgressAnswer(False))
    assert grace.since(Ended) is None
    before = time.monotonic()
    grace.take_answer(ProgressAnswer(False, ending=Ending(Limit(7.0, "grace_secs=7"))))
    assert before <= grace.since(Ended) <= time.monotonic()
    assert (grace.limit.seconds, grace.limit.source) == (7.0, "grace_secs=7")
