"""A barrier stage is connected if all its tasks reach the driver, else apart; the same for all tasks."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tfos_ml.agent.spark_task import ApartTask, ConnectedTask, TaskInfo, all_reach_driver
from tfos_ml.driver import node_exchanges
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.errors import ClusterClosedError
from tfos_ml.protocol.addresses import ControlAddress, Endpoint
from tfos_ml.protocol.cluster_template import make_template

NODES = 3
DEADLINE = 60.0


class Stage:
    """A barrier stage of Spark's, which counts its exchanges."""

    def __init__(self):
        self.barrier = threading.Barrier(NODES, timeout=DEADLINE)
        self.messages = {}
        self.exchanges = 0

    def task(self, rank):
        return SimpleNamespace(
            partitionId=lambda: rank,
            getTaskInfos=lambda: [SimpleNamespace(address="127.0.0.1:1")] * NODES,
            cpus=lambda: 1,
            resources=dict,
            attemptNumber=lambda: 0,
            taskAttemptId=lambda: 0,
            allGather=lambda message: self.gather(rank, message),
        )

    def gather(self, rank, message):
        self.messages[rank] = message
        if self.barrier.wait() == 0:
            self.exchanges += 1
        found = [self.messages[n] for n in range(NODES)]
        self.barrier.wait()
        return found


@pytest.fixture
def server():
    server = ControlServer(Endpoint("127.0.0.1", "127.0.0.1"), make_template(NODES))
    yield server
    server.close()


def nowhere():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return ControlAddress(f"grpc+tls://127.0.0.1:{free.getsockname()[1]}", "")


def meet(stage, controls):
    """Whether each task is connected, and what it has had in three exchanges."""

    def run(rank):
        if all_reach_driver(controls[rank], rank, NODES):
            node = ConnectedTask(TaskInfo(rank, "127.0.0.1", 1, {}), controls[rank], NODES)
        else:
            node = ApartTask(stage.task(rank))
        messages = [node.allGather(f"{number} of {rank}") for number in range(3)]
        node.close()
        assert messages == [[f"{number} of {rank}" for rank in range(NODES)] for number in range(3)]
        return isinstance(node, ConnectedTask)

    with ThreadPoolExecutor(NODES) as threads:
        return list(threads.map(run, range(NODES)))


def test_all_are_connected_where_all_reach_the_driver(server):
    stage = Stage()
    assert meet(stage, [server.address] * NODES) == [True] * NODES
    assert stage.exchanges == 0


def test_all_are_apart_where_one_does_not(server, monkeypatch):
    monkeypatch.setattr(node_exchanges, "ARRIVE_SECONDS", 0.5)
    stage = Stage()
    assert meet(stage, [server.address, nowhere(), server.address]) == [False] * NODES
    assert stage.exchanges == 3


def test_a_decision_stands(server, monkeypatch):
    monkeypatch.setattr(node_exchanges, "ARRIVE_SECONDS", 0.0)
    assert not all_reach_driver(server.address, 0, NODES)
    assert not any(all_reach_driver(server.address, rank, NODES) for rank in range(NODES))


def test_a_node_that_leaves_does_not_wait_for_the_others(server):
    node = ConnectedTask(TaskInfo(0, "127.0.0.1", 1, {}), server.address, NODES)
    with ThreadPoolExecutor(1) as threads:
        exchange = threads.submit(node.allGather, "")
        node.close()
        with pytest.raises(ClusterClosedError):
            exchange.result(DEADLINE)
