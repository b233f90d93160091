"""The door of a node: who may hand in rows, which of them count, and how long anybody waits."""

import socket
import threading
import uuid
from collections import deque
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from test_control import GARBAGE

from tfos_ml import errors
from tfos_ml.agent import row_receiver
from tfos_ml.agent.feed_task import FeedNode, FeedSpec, _nearest
from tfos_ml.agent.row_receiver import RowReceiver
from tfos_ml.agent.row_server import RowServer
from tfos_ml.data import blocks, rdd_to_arrow, spool
from tfos_ml.data.arrow_to_rdd import to_elements
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.channel import QueuedChannel
from tfos_ml.protocol.codec import decode, encode
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import Announcement, ExchangeRows, FeedSegment, ProgressAnswer, PutPartition
from tfos_ml.protocol.frames import receive_frame
from tfos_ml.protocol.messages import (
    Answers,
    ChunkRead,
    ChunkReady,
    ChunkReleased,
    EndOfInput,
    Message,
    Segment,
    SegmentRead,
)
from tfos_ml.protocol.partition_grants import GrantClient
from tfos_ml.protocol.template import make_template
from tfos_ml.protocol.transport import command, connect

TOKEN = "the run's token"


class Node:
    """An inlet with its endpoint and a driver; the TensorFlow process is played by the test."""

    def __init__(self, directory: Path, send=None, driver=None, token=TOKEN, patience=20.0):
        self.sent: list[Message] = []
        self.driver = driver or ControlServer("127.0.0.1", make_template(1), lambda: True)
        self.driver.feeds.open(1)
        self._client = ControlClient(**self.driver.address)
        directories = spool.SpoolDirectories(None, directory)
        self.inlet = RowReceiver(directories, send or self.send)
        self.claims = GrantClient(self._client, patience)
        self.endpoint = RowServer(self.inlet, "127.0.0.1", token, self.claims)
        self.directory = directory

    def send(self, message):
        self.sent.append(message)

    def close(self):
        self.inlet.close()
        self.endpoint.close()
        self._client.close()
        self.driver.close()

    def chunks(self):
        return [message.chunk for message in self.sent if isinstance(message, ChunkReady)]

    def elements(self):
        return [e for c in self.chunks() for b in spool.read_chunk(c.path) for e in to_elements(b)]

    def put(self, elements, token=TOKEN, partition=0, epochs=1, whole=True, claimant=None, feed_timeout=60.0):
        claimant = claimant or uuid.uuid4().hex
        descriptor = command(PutPartition(1, partition, claimant, "input", epochs, feed_timeout))
        with connect(self.endpoint.location, token) as client:
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
        node.inlet.take_up(ChunkReleased(chunk.path))
    assert not list(node.directory.iterdir())


def test_a_partition_counts_once_and_only_if_it_is_whole(node):
    node.put(range(100), whole=False)
    assert node.chunks() == []
    node.put(range(100))
    node.put(range(100))
    node.put(range(5), partition=1)
    assert sorted(node.elements()) == sorted([*range(100), *range(5)])
    assert len(list(node.directory.iterdir())) == len(node.chunks())


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
def test_strangers_are_turned_away(node, token):
    with pytest.raises(flight.FlightUnavailableError):
        node.put(range(10), token=token)
    assert node.sent == []


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_harms_nobody(node, garbage):
    with socket.create_connection(("127.0.0.1", node.endpoint.port), 10) as stranger:
        stranger.sendall(garbage)
        assert node.put([1, 2, 3])
    assert node.elements() == [1, 2, 3]


def test_feeding_waits_for_room_and_goes_on(node, monkeypatch):
    monkeypatch.setattr(row_receiver, "WINDOW_BYTES", 1)
    node.put([1], partition=0)
    feeding = threading.Thread(target=node.put, args=([2],), kwargs={"partition": 1})
    feeding.start()
    feeding.join(0.3)
    assert feeding.is_alive()
    node.inlet.take_up(ChunkReleased(node.chunks()[0].path))
    feeding.join(10)
    assert node.inlet.progress()["rows"] == 2


def test_rows_to_replay_do_not_hold_up_the_others(node, monkeypatch):
    monkeypatch.setattr(row_receiver, "WINDOW_BYTES", 1)
    for partition in range(3):
        assert node.put([partition], partition=partition, epochs=2)
    assert [c.is_kept for c in node.chunks()] == [True] * 3


def test_nothing_is_wanted_after_the_end(node):
    node.inlet.finish()
    assert node.sent[-1] == EndOfInput()
    assert node.put(range(10)) is False
    assert not list(node.directory.iterdir())


def test_rows_that_nobody_reads_are_an_error_in_time(node):
    assert next(node.inlet.feed(())) > 0
    node.put([1], feed_timeout=0.0)
    with pytest.raises(errors.FeedTimeoutError, match="neither read nor answered rows for feed_timeout=0 s"):
        next(node.inlet.feed(()))


def test_rows_that_are_kept_wait_for_nobody_once_they_have_been_read(node):
    node.put([1], epochs=2, feed_timeout=0.0)
    node.inlet.take_up(ChunkRead(node.chunks()[0].path))
    assert next(node.inlet.feed(())) > 0
    segment = Announcement(1, FeedSegment("input", 1, 2, 0.0))
    node.inlet.take_answer(ProgressAnswer(False, announcements=[segment]))  # it now is to be read again
    with pytest.raises(errors.FeedTimeoutError, match="neither read nor answered"):
        next(node.inlet.feed(()))


def test_of_calls_at_once_each_has_its_own_time_out(node):
    node.put([1], feed_timeout=60.0)
    node.put([2], partition=1, feed_timeout=0.0)
    with pytest.raises(errors.FeedTimeoutError, match="feed_timeout=0 s"):
        next(node.inlet.feed(()))
    node.inlet.take_up(ChunkReleased(node.chunks()[1].path))
    assert next(node.inlet.feed(())) > 0


def test_who_waits_for_room_behind_rows_of_another_call_has_its_own_time_out(node, monkeypatch):
    monkeypatch.setattr(row_receiver, "WINDOW_BYTES", 1)
    node.put([1], feed_timeout=60.0)
    blocked = {"args": ([2],), "kwargs": {"partition": 1, "feed_timeout": 0.1}}
    feeding = threading.Thread(target=node.put, **blocked)
    feeding.start()
    with pytest.raises(errors.FeedTimeoutError, match=r"feed_timeout=0\.1 s"):
        deque(node.inlet.feed(()), maxlen=0)
    assert feeding.is_alive()
    node.inlet.take_up(ChunkReleased(node.chunks()[0].path))
    feeding.join(10)


def test_rows_that_are_read_but_not_answered_are_an_error_in_time(node):
    exchange = node.inlet.open_exchange(0.0)
    node.inlet.infer("input", exchange, blocks.pack(list(rdd_to_arrow.to_batches([1, 2]))))
    node.inlet.take_up(ChunkReleased(node.chunks()[0].path))
    with pytest.raises(errors.FeedTimeoutError, match="neither read nor answered"):
        next(node.inlet.feed(()))
    node.inlet.close_exchange(exchange)
    assert next(node.inlet.feed(())) > 0


def test_a_task_with_rows_to_infer_from_prefers_nodes_on_its_own_host():
    nodes = tuple(FeedNode(rank, host, "") for rank, host in enumerate(["127.0.0.1", "far", "127.0.0.1", "far"]))
    control = {"location": "grpc+tls://127.0.0.1:9", "token": ""}
    order = FeedSpec(1, "input", nodes, control)
    assert [_nearest(order, partition).rank for partition in range(4)] == [2, 0, 2, 0]
    assert [_nearest(FeedSpec(number, "input", nodes, control), 0).rank for number in range(4)] == [0, 2, 0, 2]
    order = FeedSpec(2, "input", nodes[1::2], control)
    assert [_nearest(order, partition).rank for partition in range(4)] == [1, 3, 1, 3]


def test_rows_without_room_end_the_node(node, monkeypatch):
    monkeypatch.setattr(spool, "DISK_RESERVE", 1 << 60)
    with pytest.raises(flight.FlightError, match="no room for"):
        node.put([1])
    with pytest.raises(spool.NoRoomError, match="no room for"):
        next(node.inlet.feed(()))


def test_announcements_of_the_driver(node):
    segment = Announcement(1, FeedSegment("input", 7, 2, 5.0))
    for _ in range(2):  # an answer that comes twice says nothing new
        node.inlet.take_answer(ProgressAnswer(False, announcements=[segment]))
    assert node.sent == [Segment("input", 7, 2)]
    assert (node.inlet.progress()["heard"], node.inlet.progress()["pending"]) == (1, [7])
    node.inlet.take_up(SegmentRead(7))
    assert node.inlet.progress()["pending"] == []
    node.inlet.take_answer(ProgressAnswer(False, announcements=[Announcement(2, None)]))
    assert list(node.inlet.feed(())) == []


def ask(node, given):
    descriptor = command(ExchangeRows("input", 60.0))
    with connect(node.endpoint.location, TOKEN) as client:
        writer, reader = client.do_exchange(descriptor, flight.FlightCallOptions(timeout=20))
        with writer:
            writer.begin(blocks.MESSAGE_SCHEMA)
            for batch in rdd_to_arrow.to_batches(given):
                writer.write_batch(blocks.pack([batch]))
            writer.done_writing()
            blocks_back = [blocks.unpack(chunk.data)[1] for chunk in reader]
    return [e for block in blocks_back for batch in blocks.read(block) for e in to_elements(batch)]


def answer(node, directory, expected):
    """Play the TensorFlow process: answer all rows at once, in one file, when `expected` have come."""
    waited = threading.Event()
    while sum(c.rows for c in node.chunks()) < expected:
        waited.wait(0.02)
    chunks = node.chunks()
    found = [e * 2 for c in chunks for b in spool.read_chunk(c.path) for e in to_elements(b)]
    path = str(directory / "answers")
    (batch,) = rdd_to_arrow.to_batches(found)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    node.inlet.take_up(Answers(path, [(c.exchange, c.rows) for c in chunks]))


def test_two_tasks_get_each_their_own_answers_in_order(node, tmp_path_factory):
    results: dict[int, list] = {}
    tasks = [
        threading.Thread(target=lambda i=i: results.update({i: ask(node, range(i * 100, i * 100 + 20))}))
        for i in range(3)
    ]
    for task in tasks:
        task.start()
    answer(node, tmp_path_factory.mktemp("child"), 60)
    for task in tasks:
        task.join(20)
    assert results == {i: [2 * x for x in range(i * 100, i * 100 + 20)] for i in range(3)}


def test_rows_without_answers_are_an_error_when_the_function_returns(node):
    raised = []

    def task():
        try:
            ask(node, range(10))
        except flight.FlightError as error:
            raised.append(str(error))

    thread = threading.Thread(target=task)
    thread.start()
    while not node.chunks():
        thread.join(0.02)
    node.inlet.close()
    thread.join(20)
    assert "10 rows have no result: its train function reads no more rows" in raised[0]


def test_a_process_that_reads_nothing_holds_up_no_ping(tmp_path):
    """Stopped for longer than the lease, its node still answers the driver; all comes in order once it goes on."""
    ours, theirs = socket.socketpair()
    channel = QueuedChannel(ours)
    channel.start()
    node = Node(tmp_path, send=channel.send)
    try:
        chunks = [spool.Chunk(f"{'x' * 1000}-{i}", 1, 1, True) for i in range(2000)]
        node.inlet.commit("input", chunks, 1, 60.0)  # more than the socket holds
        assert node.inlet.progress()["rows"] == 2000
        received = [decode(ChunkReady, receive_frame(theirs)[0]).chunk.path for _ in chunks]
        assert received == [chunk.path for chunk in chunks]
        channel.check()
    finally:
        channel.close()
        theirs.close()
        node.close()


def message(rows, block):
    return pa.RecordBatch.from_pylist([{"rows": rows, "block": block}], blocks.MESSAGE_SCHEMA)


def block_of(elements):
    (batch,) = rdd_to_arrow.to_batches(elements)
    return blocks.unpack(blocks.pack([batch]))[1].to_pybytes()


MALFORMED = {
    "no Arrow file": message(1, b"garbage"),
    "half an Arrow file": message(3, block_of([1, 2, 3])[:-20]),
    "too many rows": message(5, block_of([1, 2, 3])),
    "too few rows": message(1, block_of([1, 2, 3])),
    "null rows": message(None, block_of([1])),
    "null block": message(1, None),
    "two messages in one": pa.Table.from_batches([message(1, block_of([1]))] * 2).combine_chunks().to_batches()[0],
    "other columns": pa.RecordBatch.from_pylist([{"x": 1}]),
}


def put_message(client, wrong, order=None):
    order = encode(ORDER) if order is None else order
    writer, reader = client.do_put(
        flight.FlightDescriptor.for_command(order), wrong.schema, flight.FlightCallOptions(timeout=10)
    )
    with writer:
        writer.write_batch(wrong)
        writer.done_writing()
        while reader.read() is not None:
            pass


def exchange_message(client, wrong):
    writer, reader = client.do_exchange(command(ExchangeRows("input", 60.0)), flight.FlightCallOptions(timeout=10))
    with writer:
        writer.begin(wrong.schema)
        writer.write_batch(wrong)
        writer.done_writing()
        reader.read_chunk()


ORDER = decode(dict, encode(PutPartition(1, 0, "a", "input", 1, 60.0)))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("send", [put_message, exchange_message])
@pytest.mark.parametrize("wrong", MALFORMED.values(), ids=MALFORMED)
def test_malformed_blocks_are_refused_and_nobody_hangs(node, wrong, send):
    with connect(node.endpoint.location, TOKEN) as client:
        with pytest.raises(pa.ArrowInvalid, match="malformed block"):
            send(client, wrong)
        assert node.sent == []
        assert not list(node.directory.iterdir())
    assert node.put([1, 2, 3])


@pytest.mark.parametrize(
    "order",
    [
        b"",
        b"garbage",
        encode([]),
        encode({}),
        encode({**ORDER, "epochs": "two"}),
        encode({**ORDER, "partition": True}),
        encode({**ORDER, "more": 0}),
        encode({**ORDER, "stream": ""}),
        encode(ExchangeRows("input", 60.0)),
    ],
)
def test_malformed_orders_are_refused(node, order):
    refusal = "malformed request|expected PutPartition"
    with connect(node.endpoint.location, TOKEN) as client, pytest.raises(pa.ArrowInvalid, match=refusal):
        put_message(client, message(1, block_of([1])), order)
    assert node.put([1])
