"""The door of a node: which rows it takes, and how long anybody waits."""

import threading
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from conftest import wait_until

from tfos_ml.agent import row_receiver
from tfos_ml.agent.row_receiver import RowReceiver
from tfos_ml.agent.row_server import GrantClient, RowServer
from tfos_ml.data import blocks, rdd_to_arrow, spool
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol import transport
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import InferRows, PutPartition
from tfos_ml.protocol.transport import command, connect

TOKEN = "the run's token"


@pytest.fixture
def node(tmp_path):
    """A receiver with its server and a driver; the TensorFlow process is played by the test."""
    driver, sent = ControlServer("127.0.0.1", make_template(1), lambda: True), []
    driver.feeds.open(1)
    client = ControlClient(driver.address)
    claims, receiver = GrantClient(client, 20.0), RowReceiver(spool.SpoolDirectories(None, tmp_path), sent.append)
    server = RowServer(receiver, "127.0.0.1", TOKEN, claims)
    yield SimpleNamespace(sent=sent, receiver=receiver, claims=claims, server=server)
    for part in (receiver, server, client, driver):
        part.close()


def message(rows, block):
    return pa.RecordBatch.from_pylist([{"rows": rows, "block": block}], blocks.MESSAGE_SCHEMA)


def block_of(elements):
    (batch,) = rdd_to_arrow.to_batches(elements)
    return blocks.unpack(blocks.pack([batch]))[1].to_pybytes()


MALFORMED = [
    message(1, b"no Arrow file"),
    message(5, block_of([1, 2, 3])),
    message(None, block_of([1])),
    message(1, None),
    pa.Table.from_batches([message(1, block_of([1]))] * 2).combine_chunks().to_batches()[0],
    pa.RecordBatch.from_pylist([{"x": 1}]),
]


def put(client, *messages, claimant="a"):
    order = command(PutPartition(1, 0, claimant, "input", 1, 60.0))
    writer, reader = client.do_put(order, messages[0].schema, flight.FlightCallOptions(timeout=10))
    with writer:
        for message in messages:
            writer.write_batch(message)
        writer.done_writing()
        while reader.read() is not None:
            pass


def test_malformed_blocks_are_refused_and_nobody_hangs(node, tmp_path):
    for wrong in MALFORMED:
        with connect(node.server.location, TOKEN) as client:
            with pytest.raises(pa.ArrowInvalid, match="malformed block"):
                put(client, wrong)
            assert node.sent == []
            assert not list(tmp_path.iterdir())


def test_a_partition_counts_once_and_only_if_it_is_whole(node):
    rows = message(3, block_of([1, 2, 3]))
    with connect(node.server.location, TOKEN) as client:
        put(client, rows, claimant="ends too early")
        assert node.sent == []
        for claimant in ("first", "second"):
            put(client, rows, blocks.END, claimant=claimant)
    assert [sent.chunk.rows for sent in node.sent] == [3]
    assert node.receiver.progress()["rows"] == 3


@pytest.fixture
def start_receiver(node, tmp_path, monkeypatch):
    """Starts a receiver whose server waits for its calls, however long they take."""
    monkeypatch.setattr(transport, "SERVER_CLOSE_SECONDS", 3600.0)

    def start(send):
        directories = spool.SpoolDirectories(None, tmp_path)
        receiver = RowReceiver(directories, send, lambda it: RowServer(it, "127.0.0.1", TOKEN, node.claims))
        receiver.start()
        return receiver

    return start


def test_a_node_that_ends_tells_the_tasks_that_wait_for_results(start_receiver):
    has_rows = threading.Event()
    receiver = start_receiver(lambda message: has_rows.set())
    with connect(receiver.location, TOKEN) as client:
        writer, reader = client.do_exchange(command(InferRows("input", 60.0)), flight.FlightCallOptions(timeout=50))
        writer.begin(blocks.MESSAGE_SCHEMA)
        writer.write_batch(blocks.pack(list(rdd_to_arrow.to_batches([1, 2]))))
        writer.done_writing()
        assert has_rows.wait(20)
        stops = threading.Thread(target=receiver.stop)
        stops.start()
        said = "2 rows have no result: its node has ended"
        assert said in reader.read_chunk().app_metadata.to_pybytes().decode()
        with pytest.raises(flight.FlightServerError, match=said):
            writer.close()
        stops.join()


def test_a_node_that_ends_waits_for_no_task_that_waits_for_room(start_receiver, monkeypatch):
    """Red before: as long as the server waits for its calls, here for ever. The rows do not count as unwanted."""
    monkeypatch.setattr(row_receiver, "WINDOW_BYTES", 0)
    receiver = start_receiver(lambda message: None)
    descriptor = command(PutPartition(1, 0, "task", "input", 1, 60.0))
    with connect(receiver.location, TOKEN) as client:
        writer, _ = client.do_put(descriptor, blocks.MESSAGE_SCHEMA, flight.FlightCallOptions(timeout=50))
        writer.write_batch(blocks.pack(list(rdd_to_arrow.to_batches([1, 2]))))
        assert wait_until(lambda: receiver._held_up, 20)
        receiver.stop()
        with pytest.raises(flight.FlightUnavailableError, match="the node ends"):
            writer.close()
