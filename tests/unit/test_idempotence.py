"""Calls whose answers are lost, late or doubled: no row, report or result is missing or counted twice."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections import deque

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from conftest import wait_until
from test_endpoint import Node

from tfos_ml import errors
from tfos_ml.agent.feed_task import FeedNode, FeedSpec, feed_elements
from tfos_ml.agent.progress_link import ProgressLink
from tfos_ml.agent.spark_task import PlainTask, TaskInfo
from tfos_ml.common.local_files import FileWriter
from tfos_ml.compat.reservation import Client
from tfos_ml.driver import nodes as driver_nodes
from tfos_ml.driver import partitions as driver_partitions
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.driver.partitions import Partitions, check_rows
from tfos_ml.protocol import control_client, results, transport
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import (
    GRANTED,
    PENDING,
    TAKEN,
    GetOutcome,
    NodeProgress,
    ReportGone,
    ReportProgress,
    SendResults,
)
from tfos_ml.protocol.failure import NodeFailure, find_failure
from tfos_ml.protocol.messages import Report

DEADLINE = 60.0
FAULTS = ["lost", "late", "doubled", "overtaken"]
each_fault = pytest.mark.parametrize("fault", FAULTS)


class FaultyServer(ControlServer):
    """A server that lets calls take effect and then loses, delays or doubles them, as told for the next of each kind.

    ``lost``: it takes effect, its answer does not come. ``late``: its answer comes after the caller has given up.
    ``doubled``: it takes effect twice. ``overtaken``: it gets lost, and takes effect after the next call of any kind.
    """

    late_for = 0.6

    def __init__(self, *args):
        self._plan = {}
        self._overtaken = deque()
        self.counts = {}
        super().__init__("127.0.0.1", *args)

    def plan(self, kind, *faults):
        self._plan[kind] = deque(faults)

    def do_action(self, context, action):
        kind, body = action.type, action.body.to_pybytes()
        self.counts[kind] = self.counts.get(kind, 0) + 1

        def take_effect():
            return super(FaultyServer, self).do_action(context, flight.Action(kind, body))

        return self._with_fault(kind, take_effect)

    def do_put(self, context, descriptor, reader, writer):
        self.counts["put"] = self.counts.get("put", 0) + 1
        self._with_fault("put", lambda: super(FaultyServer, self).do_put(context, descriptor, reader, writer))

    def _with_fault(self, kind, take_effect):
        plan = self._plan.get(kind)
        fault = plan.popleft() if plan else None
        if fault == "overtaken" and kind != "put":
            self._overtaken.append(take_effect)
            raise flight.FlightUnavailableError("lost on the way")
        answer = take_effect()
        while self._overtaken:
            self._overtaken.popleft()()
        if fault in ("lost", "overtaken"):
            raise flight.FlightUnavailableError("the answer is lost")
        if fault == "doubled" and kind != "put":
            take_effect()
        if fault == "late":
            threading.Event().wait(self.late_for)
        return answer


@pytest.fixture
def impatient(monkeypatch):
    """Callers do not wait long for an answer, and late ones take longer."""
    monkeypatch.setattr(control_client, "CALL_TIMEOUT", 0.3)
    monkeypatch.setattr(control_client, "CALL_RETRY_SECONDS", 0.02)
    for module in (driver_nodes, driver_partitions):
        monkeypatch.setattr(module, "OUTCOME_SECONDS", 0.2)


@pytest.fixture
def serve(impatient):
    servers = []

    def serve(size=None):
        """The server of a cluster of so many nodes, or of a fit."""
        server = FaultyServer(make_template(1)) if size is None else FaultyServer(make_template(size), lambda: True)
        servers.append(server)
        return server

    yield serve
    while servers:  # a server holds the models that came to it
        servers.pop().close()


@pytest.fixture
def connect():
    clients = []

    def connect(server):
        clients.append(ControlClient(server.address))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


# Feeding


def feed(nodes, server, partitions, attempts=4, epochs=1):
    """What Spark does: run each feed task, on one node after another until one attempt succeeds."""
    fed = {}
    for partition, elements in enumerate(partitions):
        for attempt in range(attempts):
            node = nodes[(partition + attempt) % len(nodes)]
            location = FeedNode(0, "127.0.0.1", node.endpoint.location, "worker:0")
            order = FeedSpec(1, "input", (location,), server.address, epochs, patience=DEADLINE)
            try:
                fed |= dict(feed_elements(order, partition, iter(elements)))
                break
            except NodeFailure:
                assert attempt < attempts - 1
    return fed


def rows_before_train_function(nodes):
    return sorted(element for node in nodes for element in node.elements())


@pytest.fixture
def two_nodes(serve, tmp_path):
    """Two nodes of one cluster, and its server."""
    server = serve(2)
    nodes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        node = Node(tmp_path / name, driver=server, token=server.address.token, patience=DEADLINE)
        nodes.append(node)
    yield nodes, server
    for node in nodes:
        node.close()


PARTITIONS = [range(10), range(10, 20), range(20, 30), range(30, 40)]


@each_fault
@pytest.mark.parametrize("call", ["ClaimPartition", "CommitPartition"])
def test_every_row_is_fed_once_whatever_becomes_of_an_answer(two_nodes, call, fault):
    nodes, server = two_nodes
    server.plan(call, fault, None, fault)
    fed = feed(nodes, server, PARTITIONS)
    assert rows_before_train_function(nodes) == list(range(40))
    check_rows(fed, server.feeds.committed(1, 0))
    assert sum(fed.values()) == 40


def test_an_attempt_that_gets_no_grant_gives_up_its_claim_and_the_next_one_feeds(two_nodes):
    nodes, server = two_nodes
    nodes[0].claims._client._options = flight.FlightCallOptions(timeout=DEADLINE)  # however busy this machine is
    nodes[0].claims._patience = 0.0
    server.plan("ClaimPartition", "lost")  # granted, but its node never hears of it
    fed = feed(nodes, server, PARTITIONS[:1])
    assert (fed, rows_before_train_function(nodes)) == ({0: 10}, list(range(10)))
    assert nodes[0].chunks() == []
    assert server.counts["ReleasePartition"] == 1


def test_a_second_attempt_waits_for_the_first_and_counts_its_rows(two_nodes):
    nodes, _ = two_nodes
    client = nodes[1].claims
    assert nodes[0].claims.take(1, 0, "first")
    second = []
    thread = threading.Thread(target=lambda: second.append(client.take(1, 0, "second")))
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    nodes[0].claims.commit(1, 0, "first", 10)
    thread.join(DEADLINE)
    assert second == [False]


class TestClaims:
    @pytest.fixture
    def claims(self):
        claims = Partitions()
        claims.open(1, {})
        return claims

    def test_the_same_claimant_is_granted_again_and_others_wait_then_are_refused(self, claims):
        assert [claims.claim(1, 0, who) for who in "aab"] == [GRANTED, GRANTED, PENDING]
        for _ in range(2):
            claims.commit(1, 0, "a", 10)
        assert [claims.claim(1, 0, who) for who in "ab"] == [GRANTED, TAKEN]
        assert (claims.committed(1), claims.is_settled(1)) == ({0: 10}, True)

    def test_a_grant_that_is_released_goes_to_the_next_and_never_comes_back(self, claims):
        claims.claim(1, 0, "a")
        assert not claims.is_settled(1)
        for _ in range(2):
            claims.release(1, 0, "a")
        assert [claims.claim(1, 0, who) for who in "aba"] == [TAKEN, GRANTED, TAKEN]
        with pytest.raises(ValueError, match="not been granted"):
            claims.commit(1, 0, "a", 10)


# Progress


@each_fault
def test_every_report_is_taken_once_and_in_order(serve, fault):
    server = serve()
    server.plan("ReportProgress", fault, None, fault)
    link = ProgressLink(ControlClient(server.address), 0, lambda: NodeProgress(rows=1), period=0.01)
    link.start()
    reported = [link.report(Report({"loss": 0.5}, None, i, 0.0, "worker:0")) for i in range(100)]
    taken = []
    assert wait_until(lambda: taken.extend(server.nodes.take_reports()) or len(taken) >= 100, DEADLINE)
    link.close()
    assert [*taken, *server.nodes.take_reports()] == reported
    later = Report({"loss": 0.5}, None, 100, 0.0, "worker:0")
    assert server.nodes.new(0, [*reported, later]) == [later]  # the node's result repeats them
    assert server.nodes.progress() == {0: NodeProgress(rows=1)}
    link.report_gone(succeeded=True)


@each_fault
def test_gone_failed_and_stop_are_heard_of(serve, connect, fault):
    server = serve(1)
    for kind in ("ReportGone", "ReportFailure", "RequestStop", "GetOutcome"):
        server.plan(kind, fault)
    client = connect(server)
    placement = PlainTask(TaskInfo(0, "127.0.0.1", 1, {}), server.address, 1)
    placement.report_failure("the first failure")
    assert server.nodes.failure() == "the first failure"
    assert client.call_reliably(GetOutcome(0), DEADLINE).failure == "the first failure"
    Client(server.address).request_stop()
    assert server.feeds.stop_requested
    client.call(ReportProgress(0, 1, NodeProgress(), []))
    client.call_reliably(ReportGone(0, False), DEADLINE)
    assert server.nodes.wait_gone(0)


@each_fault
def test_nodes_gather_whatever_becomes_of_an_answer(serve, fault):
    server = serve(2)
    server.plan("GatherRound", None, fault, fault, None, fault)
    gathered = {}

    def node(rank):
        placement = PlainTask(TaskInfo(rank, "127.0.0.1", 1, {}), server.address, 2)
        gathered[rank] = [placement.allGather(f"{rank} in {number}") for number in range(6)]

    threads = [threading.Thread(target=node, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    expected = [[f"0 in {number}", f"1 in {number}"] for number in range(6)]
    assert gathered == {0: expected, 1: expected}
    assert server.all_gather.first() == {0: "0 in 0", 1: "1 in 0"}


# Results


def deliver(server, rows, whole=True):
    descriptor = transport.command(SendResults(0))
    with transport.connect(server.address.location, server.address.token) as client:
        options = flight.FlightCallOptions(timeout=DEADLINE)
        writer, reader = client.do_put(descriptor, rows[0].schema, options)
        with writer:
            for row in [*rows, *([results.row(0, results.END, b"")] if whole else [])]:
                writer.write_batch(row)
            writer.done_writing()
            while reader.read() is not None:
                pass


def test_results_that_come_twice_count_once_and_those_that_are_not_whole_never(serve):
    server = serve(1)
    parts = [results.row(0, "model", b"abc"), results.row(0, "model", b"def")]
    with pytest.raises(pa.ArrowInvalid, match="ended early"):
        deliver(server, parts, whole=False)
    assert not server.nodes.have_results([0], 0)
    server.plan("put", "lost")
    with pytest.raises(flight.FlightUnavailableError):
        deliver(server, parts)
    deliver(server, parts)
    assert server.nodes.have_results([0], 0)
    assert server.nodes.results().models[0].read() == b"abcdef"


def test_a_full_disk_of_the_driver_fails_the_run(serve, monkeypatch):
    def write(self, part):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileWriter, "write", write)
    server = serve(1)
    with pytest.raises(pa.ArrowException):
        deliver(server, [results.row(0, results.MODEL, b"abc")])
    error = find_failure(server.nodes.failure()).to_error()
    assert isinstance(error, errors.SpoolFullError)
    assert f"On the driver, nothing more can be written to {tempfile.gettempdir()}" in str(error)
    assert "Give TMPDIR another directory" in str(error)
