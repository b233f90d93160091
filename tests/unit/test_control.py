import contextlib
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import wait_until
from msgspec import structs

from tfos_ml.agent import outbox as outboxes
from tfos_ml.agent.outbox import Outbox
from tfos_ml.agent.progress_link import ProgressLink
from tfos_ml.driver import nodes
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol import control_client, results
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.codec import encode
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import NodeProgress, ReportProgress
from tfos_ml.protocol.failure import find_failure
from tfos_ml.protocol.messages import LogLine, Report

DEADLINE = 60.0


@pytest.fixture
def server():
    server = ControlServer("127.0.0.1", make_template(8))
    yield server
    server.close()


@pytest.fixture
def connect(server):
    """Makes clients of the server."""
    clients = []

    def connect():
        clients.append(ControlClient(server.address))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def reported(epoch):
    return Report({"loss": 0.5}, epoch, None, 0.0, "worker:0")


def summary_of(server, rank, left):
    """The summary of a node whose results bring reports that were left."""
    parts = {results.REPORTS: encode(left), "report": encode({"label": "worker"})}
    rows = [row for kind, part in parts.items() for row in results.read_rows(results.row(rank, kind, part))]
    (summary,) = server.nodes.summaries(rows).values()
    return {"epochs": [report["epoch"] for report in summary.pop("metrics")], **summary}


def test_nothing_but_the_given_address_is_listened_on(server):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), DEADLINE)


class TestProgressLink:
    def test_reports_that_come_with_a_call_and_with_the_results_count_once(self, server, connect):
        outbox = Outbox()
        for epoch in range(3):
            outbox.add(reported(epoch))
        outbox.add(LogLine("said"))
        (reports,) = outbox.batches()
        assert [report.number for report in reports] == [0, 1, 2, 3]
        connect().call(ReportProgress(0, 1, NodeProgress(), reports[:2]))
        for _ in range(2):
            assert summary_of(server, 0, reports) == {"label": "worker", "epochs": [0, 1, 2]}
        assert [report.epoch for report in server.nodes.take_reports()] == [0, 1, 2]
        assert server.nodes.take_lines() == ["said"]
        outbox.confirm(reports[:2])
        assert list(outbox.batches()) == [reports[2:]]

    def test_of_nodes_that_outlive_their_tasks_nothing_waits_to_be_shown(self):
        outliving = nodes.Nodes(make_template(8), is_wanted=lambda: True)
        outliving.take(0, [reported(0)])
        assert outliving.take_reports() == []

    def test_too_many_lines_drop_the_oldest_and_no_metrics(self, monkeypatch):
        monkeypatch.setattr(outboxes, "KEPT_LINES", 2)
        outbox = Outbox()
        outbox.add(reported(0))
        for text in "abc":
            outbox.add(LogLine(text))
        assert list(outbox.batches()) == [[structs.replace(reported(0), number=0), LogLine("b", 2), LogLine("c", 3)]]

    def test_a_report_that_is_too_large_for_a_call_comes_in_parts(self):
        outbox, metrics = Outbox(), {f"a metric with number {i}": float(i) for i in range(60_000)}
        outbox.add(Report(metrics, 0, None, 0.0, "worker:0"))
        batches = list(outbox.batches())
        parts = [report.metrics for batch in batches for report in batch]
        assert {name: value for part in parts for name, value in part.items()} == metrics
        assert max(len(encode(batch)) for batch in batches) < 1.1 * outboxes.BATCH_BYTES


SERVER = """
import sys
from tfos_ml.driver import nodes
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.cluster_template import make_template
server = ControlServer("127.0.0.1", make_template(8))
print(server.address.location, server.address.token, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def running(program, *arguments):
    """A process that runs a program, and the words that it prints first."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


@pytest.fixture
def driver():
    with running(SERVER) as (process, address):
        yield process, ControlAddress(*address)


def test_a_driver_that_stands_still_is_not_gone_and_one_that_died_is(driver, monkeypatch):
    process, address = driver
    monkeypatch.setattr(control_client, "CALL_TIMEOUT", 0.5)
    monkeypatch.setattr(control_client, "REFUSED_SECONDS", 0.5)
    link = ProgressLink(ControlClient(address), 0, Outbox(), NodeProgress, period=0.01)
    link.start()
    assert wait_until(lambda: link.answer is not None, DEADLINE)
    process.send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    assert not wait_until(lambda: link.is_driver_gone, 2)
    assert link.answered_at < stopped_at + 0.5
    process.send_signal(signal.SIGCONT)
    assert wait_until(lambda: link.answered_at > stopped_at + 2, DEADLINE)
    process.kill()
    assert wait_until(lambda: link.is_driver_gone, DEADLINE)
    link.close()
    link.report_gone(succeeded=True)


NODE = """
import sys
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import NodeProgress, ReportProgress

client = ControlClient(ControlAddress(*sys.argv[1:3]))
print(client.call(ReportProgress(1, 1, NodeProgress(), [])).stop, flush=True)
sys.stdin.read()
"""


def is_lost(server):
    """Whether worker 1 counts as lost although its lease has not ended."""
    server.nodes.expire_leases(60.0, server.connected_ports)
    failure = server.nodes.failure()
    assert failure is None or "all processes of the node have ended at once" in find_failure(failure).message
    return failure is not None


def test_a_node_whose_process_stands_still_has_its_lease_and_one_that_was_killed_has_not(server, monkeypatch):
    monkeypatch.setattr(nodes, "RECONNECT_SECONDS", 0.2)
    with running(NODE, server.address.location, server.address.token) as (process, _):
        process.send_signal(signal.SIGSTOP)
        assert not wait_until(lambda: is_lost(server), 1.0)
        process.kill()
    assert wait_until(lambda: is_lost(server), DEADLINE)
    failure = find_failure(server.nodes.failure())
    assert (failure.role, failure.index) == ("worker", 1)
    assert server.nodes.wait_gone(0)
