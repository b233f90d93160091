"""What becomes of a node: when it is ended, and which failure is its own.

That every cluster ends, whatever its processes do, is what ``simulation/`` plays; exits of real processes and barriers
are in ``test_node_faults.py``.
"""

import socket

import pytest
from node_tasks import make_task

from tfos_ml import errors
from tfos_ml.agent import node_events as e
from tfos_ml.agent.node_identity import NodeInfo, identity_of, read_infos
from tfos_ml.agent.node_state import NodeState, ProcessState
from tfos_ml.protocol import messages as m
from tfos_ml.protocol.channel import Channel
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.codec import encode_text
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.grace_periods import GracePeriods

OWN = Failure(errors.TrainFnError, "the train function raised")
COLLATERAL = Failure(errors.TrainFnError, "a collective broke", collateral=True)
TIMEOUTS = GracePeriods(worker=3.0, server=1.0, evaluator=2.0)


class Nodes:
    """All nodes of a cluster, which have met; each has one row more than its rank. The clock stands unless told."""

    def __init__(self, template):
        task = make_task(template=template, grace_periods=TIMEOUTS)
        self.states = [NodeState(identity_of(task, rank, "127.0.0.1"), 10.0) for rank in range(template.size)]
        self.failures = [None] * len(self.states)
        self._mine = [None] * len(self.states)
        self.now = 0.0
        for rank in range(template.size):
            self.handle(rank, e.NodesMet())
            self.handle(rank, e.RowsCounted(m.RowCounts("AAAA", rows={"train": rank + 1})))
        self.tick()

    def handle(self, rank, event):
        for effect in self.states[rank].handle(event, self.now):
            match effect:
                case e.Exchange():
                    assert self._mine[rank] is None
                    self._mine[rank] = encode_text(effect.message)
                case e.Fail():
                    self.failures[rank] = effect.failure
        if all(mine is not None for mine in self._mine):
            answers, self._mine = self._mine, [None] * len(self.states)
            for other in range(len(self.states)):
                self.handle(other, e.Exchanged(answers))

    def tick(self, seconds=0.0):
        """Let time pass; several exchanges may follow one another."""
        self.now += seconds
        for _ in range(4):
            for rank in range(len(self.states)):
                self.handle(rank, e.Tick(rank + 1, 0.0))

    def end(self, *ranks):
        for rank in ranks:
            self.handle(rank, m.Returned())
            self.handle(rank, e.ProcessExited(0))
            self.handle(rank, e.InputOver())
        self.tick()


PS, CHIEF, EVALUATOR, WORKER = range(4)


@pytest.mark.parametrize(("rank", "seconds"), [(PS, 1.0), (EVALUATOR, 2.0), (WORKER, 3.0)])
def test_a_passive_node_is_ended_when_nothing_is_left_for_it_and_its_grace_is_over(rank, seconds):
    nodes = Nodes(make_template(4, num_ps=1, master_node="chief", eval_node=True))
    nodes.tick(100.0)
    if rank != WORKER:
        nodes.end(WORKER)
    nodes.end(CHIEF)
    nodes.tick(seconds - 0.1)
    assert nodes.states[rank].process is ProcessState.RUNS
    nodes.tick(0.2)
    assert nodes.states[rank].process is ProcessState.ENDED_WELL
    assert (nodes.states[rank].ended_at_work is None) is (rank == PS)


@pytest.mark.parametrize("failure", [COLLATERAL, OWN], ids=["collateral", "own"])
def test_a_worker_that_breaks_when_the_chief_has_ended_is_no_failure_and_one_that_fails_is(failure):
    nodes = Nodes(make_template(3, num_ps=1, master_node="chief"))
    nodes.handle(1, m.Returned())
    nodes.handle(1, e.ProcessExited(0))
    nodes.tick()
    nodes.handle(2, failure)
    nodes.handle(2, e.ProcessExited(1))
    nodes.tick()
    if failure is OWN:
        assert nodes.failures[2].message == OWN.message
    else:
        assert nodes.failures == [None] * 3
        assert "failed after the chief had ended" in nodes.states[2].ended_at_work


def test_nodes_and_processes_of_other_versions_are_named():
    versions = enumerate(("2.18", "2.19"))
    infos = [encode_text(NodeInfo(rank, f"worker:{rank}", "h", 1, {"tensorflow": v}, 1)) for rank, v in versions]
    with pytest.raises(
        errors.VersionMismatchError, match="versions of tensorflow: {'worker:0 on h': '2.18', 'worker:1"
    ):
        read_infos(infos)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"hello\n")
        with pytest.raises(errors.VersionMismatchError, match="Install the same version of tfos_ml"):
            list(Channel(ours))
