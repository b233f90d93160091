"""The door of a node: who may hand in rows, which of them count, and how long anybody waits."""

import threading
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from conftest import wait_until

from tfos_ml import errors
from tfos_ml.agent import row_receiver
from tfos_ml.agent.row_receiver import RowReceiver
from tfos_ml.agent.row_server import GrantClient, RowServer
from tfos_ml.data import blocks, rdd_to_arrow, spool
from tfos_ml.data.arrow_to_rdd import to_elements
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol import transport
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.codec import decode
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import Announcement, InferRows, ProgressAnswer, PutPartition, TrainCall
from tfos_ml.protocol.messages import ChunkReady, ChunkReleased, Message
from tfos_ml.protocol.transport import command, connect

TOKEN = "the run's token"


class Node:
    """An inlet with its endpoint and a driver; the TensorFlow process is played by the test."""

    def __init__(self, directory: Path):
        self.sent: list[Message] = []
        self.driver = ControlServer("127.0.0.1", make_template(1), lambda: True)
        self.driver.feeds.open(1)
        self._client = ControlClient(self.driver.address)
        directories = spool.SpoolDirectories(None, directory)
        self.inlet = RowReceiver(directories, self.sent.append)
        self.claims = GrantClient(self._client, 20.0)
        self.endpoint = RowServer(self.inlet, "127.0.0.1", TOKEN, self.claims)
        self.directory = directory

    def close(self):
        self.inlet.close()
        self.endpoint.close()
        self._client.close()
        self.driver.close()

    def chunks(self):
        return [message.chunk for message in self.sent if isinstance(message, ChunkReady)]

    def elements(self):
        return [e for c in self.chunks() for b in spool.read_chunk(c.path) for e in to_elements(b)]

    def put(self, elements, partition=0, whole=True, feed_timeout=60.0):
        descriptor = command(PutPartition(1, partition, uuid.uuid4().hex, "input", 1, feed_timeout))
        with connect(self.endpoint.location, TOKEN) as client:
            writer, reader = client.do_put(descriptor, blocks.MESSAGE_SCHEMA, flight.FlightCallOptions(timeout=20))
            with writer:
                for batch in rdd_to_arrow.to_batches(elements):
                    writer.write_batch(blocks.pack([batch]))
                    if not decode(dict, reader.read().to_pybytes())["wanted"]:
                        return False
                if whole:
                    writer.write_batch(blocks.END)
                writer.done_writing()
                while reader.read() is not None:
                    pass
        return True


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    node.close()


def test_rows_arrive_as_they_were_and_stay_in_files_until_read(node):
    given = [(1, "ä", [0.5, 1.5]), (2, "", [])] * 100
    assert node.put(given)
    assert [(n, text, list(array)) for n, text, array in node.elements()] == given
    assert node.inlet.progress()["rows"] == 200
    for chunk in node.chunks():
        node.inlet.handle_message(ChunkReleased(chunk.path))
    assert not list(node.directory.iterdir())


def test_a_partition_counts_once_and_only_if_it_is_whole(node):
    node.put(range(100), whole=False)
    assert node.chunks() == []
    node.put(range(100))
    node.put(range(100))
    node.put(range(5), partition=1)
    assert sorted(node.elements()) == sorted([*range(100), *range(5)])
    assert len(list(node.directory.iterdir())) == len(node.chunks())


def test_feeding_waits_for_room_and_goes_on(node, monkeypatch):
    monkeypatch.setattr(row_receiver, "WINDOW_BYTES", 1)
    node.put([1], partition=0)
    feeding = threading.Thread(target=node.put, args=([2],), kwargs={"partition": 1})
    feeding.start()
    feeding.join(0.3)
    assert feeding.is_alive()
    node.inlet.handle_message(ChunkReleased(node.chunks()[0].path))
    feeding.join(60)
    assert node.inlet.progress()["rows"] == 2


def test_rows_that_nobody_reads_are_an_error_in_time(node):
    assert next(node.inlet.feed(())) > 0
    node.put([1], feed_timeout=0.0)
    with pytest.raises(errors.FeedTimeoutError, match="neither read nor answered rows for feed_timeout=0 s"):
        next(node.inlet.feed(()))


def message(rows, block):
    return pa.RecordBatch.from_pylist([{"rows": rows, "block": block}], blocks.MESSAGE_SCHEMA)


def block_of(elements):
    (batch,) = rdd_to_arrow.to_batches(elements)
    return blocks.unpack(blocks.pack([batch]))[1].to_pybytes()


MALFORMED = [
    message(1, b"no Arrow file"),
    message(3, block_of([1, 2, 3])[:-20]),
    message(5, block_of([1, 2, 3])),
    message(1, block_of([1, 2, 3])),
    message(None, block_of([1])),
    message(1, None),
    pa.Table.from_batches([message(1, block_of([1]))] * 2).combine_chunks().to_batches()[0],
    pa.RecordBatch.from_pylist([{"x": 1}]),
]


def put_message(client, wrong):
    order = command(PutPartition(1, 0, "a", "input", 1, 60.0))
    writer, reader = client.do_put(order, wrong.schema, flight.FlightCallOptions(timeout=10))
    with writer:
        writer.write_batch(wrong)
        writer.done_writing()
        while reader.read() is not None:
            pass


def exchange_message(client, wrong):
    writer, reader = client.do_exchange(command(InferRows("input", 60.0)), flight.FlightCallOptions(timeout=10))
    with writer:
        writer.begin(wrong.schema)
        writer.write_batch(wrong)
        writer.done_writing()
        reader.read_chunk()


@pytest.mark.parametrize("send", [put_message, exchange_message])
def test_malformed_blocks_are_refused_and_nobody_hangs(node, send):
    for wrong in MALFORMED:
        with connect(node.endpoint.location, TOKEN) as client:
            with pytest.raises(pa.ArrowInvalid, match="malformed block"):
                send(client, wrong)
            assert node.sent == []
            assert not list(node.directory.iterdir())
    assert node.put([1, 2, 3])


def test_only_rows_that_a_train_function_will_not_read_count_as_read_to_the_end(tmp_path):
    """A node that fails keeps them: what it then says to the driver may come before its failure."""
    calls = [Announcement(number, TrainCall("input", number, 1, 10.0)) for number in (1, 2)]
    for is_read in (False, True):
        receiver = RowReceiver(spool.SpoolDirectories(None, tmp_path), lambda message: None)
        receiver.take_answer(ProgressAnswer(stop=False, announcements=calls[:1]))
        if is_read:
            receiver.close()
        receiver.stop()
        receiver.take_answer(ProgressAnswer(stop=False, announcements=calls))
        said = receiver.progress()
        assert (said["stopped_reading"], said["unread_calls"]) == ((True, []) if is_read else (False, [1, 2]))
        assert not receiver.wait_for_room(10.0)


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


@pytest.mark.parametrize("has_more", [False, True])
def test_a_node_that_ends_tells_the_tasks_that_wait_for_results(start_receiver, has_more):
    has_rows = threading.Event()
    receiver = start_receiver(lambda message: has_rows.set())
    with connect(receiver.location, TOKEN) as client:
        writer, reader = client.do_exchange(command(InferRows("input", 60.0)), flight.FlightCallOptions(timeout=50))
        writer.begin(blocks.MESSAGE_SCHEMA)
        writer.write_batch(blocks.pack(list(rdd_to_arrow.to_batches([1, 2]))))
        if not has_more:
            writer.done_writing()
        assert has_rows.wait(20)
        stops = threading.Thread(target=receiver.stop)
        stops.start()
        said = "2 rows have no result: its node has ended"
        assert said in reader.read_chunk().app_metadata.to_pybytes().decode()
        if has_more:
            writer.done_writing()
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
