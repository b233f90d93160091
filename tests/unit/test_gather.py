"""Who carries the exchanges of a barrier stage: the driver, if all tasks reach it, else Spark; the same for all."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tfos_ml.agent import spark_task
from tfos_ml.agent.rendezvous import Rendezvous
from tfos_ml.agent.spark_task import BarrierTask
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.addresses import Endpoint
from tfos_ml.protocol.cluster_template import make_template

NODES = 3
DEADLINE = 20.0


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
        return {"location": f"grpc+tls://127.0.0.1:{free.getsockname()[1]}", "token": ""}


def exchange(stage, controls, rounds, delays=(0, 0, 0)):
    """What each node has had in each exchange."""
    gate = [threading.Event() for _ in delays]

    def run(rank):
        gate[rank].wait(delays[rank])
        node = BarrierTask(stage.task(rank), controls[rank])
        return [node.allGather(f"{number} of {rank}") for number in range(rounds)]

    with ThreadPoolExecutor(NODES) as threads:
        return list(threads.map(run, range(NODES)))


def expected(rounds):
    return [[[f"{number} of {rank}" for rank in range(NODES)] for number in range(rounds)]] * NODES


def test_the_driver_where_all_reach_it(server):
    stage = Stage()
    assert exchange(stage, [server.address] * NODES, 4) == expected(4)
    assert stage.exchanges == 0


def test_spark_where_one_does_not(server, monkeypatch):
    monkeypatch.setattr(spark_task, "DRIVER_SECONDS", 0.5)
    stage = Stage()
    assert exchange(stage, [server.address, nowhere(), server.address], 3) == expected(3)
    assert stage.exchanges == 3


def test_the_driver_where_all_have_arrived_though_one_takes_long_to_start(server):
    stage = Stage()
    nodes = [BarrierTask(stage.task(rank), server.address) for rank in range(NODES)]
    for node in nodes:
        node.arrive()
    server.all_gather._begun -= spark_task.DRIVER_SECONDS + 1  # so long its TensorFlow process takes
    with ThreadPoolExecutor(NODES) as threads:
        assert list(threads.map(lambda node: node.allGather("here"), nodes)) == [["here"] * NODES] * NODES
    assert stage.exchanges == 0


def test_spark_where_there_is_no_server():
    stage = Stage()
    assert exchange(stage, [None] * NODES, 2) == expected(2)
    assert stage.exchanges == 2


def test_no_task_is_left_waiting_when_they_leave(server):
    stage = Stage()
    nodes = [BarrierTask(stage.task(rank), server.address) for rank in range(NODES)]
    exchanges = [Rendezvous(node) for node in nodes]
    futures = [exchanges[rank].exchange("") for rank in (0, 2)]
    with ThreadPoolExecutor(NODES) as threads:
        left = [threads.submit(nodes[rank].leave, exchanges[rank]) for rank in range(NODES)]
        assert [one.result(DEADLINE) for one in left] == [True] * NODES
    assert all(future.done() for future in futures)
