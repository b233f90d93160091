"""Tasks of a failed run end without leaving one of them waiting in an exchange of Spark's."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfos_ml.agent import rendezvous
from tfos_ml.agent.rendezvous import Rendezvous, leave_together
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.addresses import Endpoint
from tfos_ml.protocol.cluster_template import make_template

NODES = 3
DEADLINE = 20.0


class Stage:
    """The exchanges of a barrier stage: each needs a message of every task."""

    def __init__(self):
        self.barrier = threading.Barrier(NODES, timeout=DEADLINE)

    def allGather(self, message=""):
        self.barrier.wait()
        return [message] * NODES


@pytest.fixture
def server():
    server = ControlServer(Endpoint("127.0.0.1", "127.0.0.1"), make_template(NODES))
    yield server
    server.close()


@pytest.mark.parametrize(
    "waiting", [(), (0,), (0, 2), (0, 1, 2)], ids=["nobody waits", "one waits", "two wait", "an exchange has ended"]
)
@pytest.mark.parametrize("before", [0, 1], ids=["first exchange", "second exchange"])
def test_no_task_is_left_waiting(server, before, waiting):
    stage = Stage()
    nodes = [Rendezvous(stage) for _ in range(NODES)]
    for _ in range(before):
        for future in [node.exchange("") for node in nodes]:
            future.result(DEADLINE)
    futures = [nodes[rank].exchange("") for rank in waiting]
    with ThreadPoolExecutor(NODES) as threads:
        left = [threads.submit(leave_together, nodes[rank], server.address, rank, NODES) for rank in range(NODES)]
        assert [one.result(DEADLINE) for one in left] == [True] * NODES
    assert all(future.done() for future in futures)
    assert {node.begun for node in nodes} == {before + bool(waiting)}


def test_a_task_whose_peers_do_not_come_may_not_end(server, monkeypatch):
    monkeypatch.setattr(rendezvous, "LEAVE_SECONDS", 0.3)
    assert not leave_together(Rendezvous(Stage()), server.address, 0, NODES)


def test_a_task_that_cannot_reach_the_driver_may_not_end(server, monkeypatch):
    monkeypatch.setattr(rendezvous, "LEAVE_SECONDS", 0.3)
    server.close()
    assert not leave_together(Rendezvous(Stage()), server.address, 0, NODES)
