import itertools
import socket
import threading

import pytest
from conftest import wait_until

from tfos_ml import errors
from tfos_ml.protocol.channel import Channel, ChannelClosedError, QueuedChannel
from tfos_ml.protocol.codec import encode
from tfos_ml.protocol.frames import frame
from tfos_ml.protocol.messages import EndOfCall, EndOfInput, LogLine, ReleasePort

DEADLINE = 60.0


@pytest.fixture
def ends():
    """A channel and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


@pytest.fixture
def channels():
    pair = [Channel(end) for end in socket.socketpair()]
    yield pair
    for channel in pair:
        channel.close()


def test_concurrent_senders_do_not_mix_their_messages(channels):
    sender, receiver = channels

    def send(who):
        for number in range(50):
            sender.send(EndOfCall("x" * 5000, who, number))

    threads = [threading.Thread(target=send, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    received = list(itertools.islice(receiver, 8 * 50))
    for thread in threads:
        thread.join(DEADLINE)
    for who in range(8):
        assert [m.epochs for m in received if m.number == who] == list(range(50))


def test_sending_to_a_peer_that_is_gone_is_an_error(ends):
    channel, peer = ends
    peer.close()
    with pytest.raises(ChannelClosedError, match="the peer is gone"):
        channel.send(ReleasePort())


def test_a_peer_that_never_reads_counts_as_gone_after_the_timeout():
    ours, theirs = socket.socketpair()
    channel = Channel(ours, send_timeout=0.2)
    try:
        with pytest.raises(ChannelClosedError):
            channel.send(LogLine("x" * (8 << 20)))
    finally:
        channel.close()
        theirs.close()


@pytest.mark.parametrize("wrong", [frame(encode({"type": "Unheard"})), b"Traceback (most recent call last):"])
def test_what_is_no_message_is_a_typed_error(ends, wrong):
    channel, peer = ends
    peer.sendall(frame(encode(EndOfInput())) + wrong)
    received = iter(channel)
    assert next(received) == EndOfInput()
    with pytest.raises(errors.VersionMismatchError, match="same version of tfos_ml"):
        next(received)


def test_close_wakes_a_reader(ends):
    channel, _ = ends
    received = []
    reader = threading.Thread(target=lambda: received.extend(channel))
    reader.start()
    channel.close()
    reader.join(DEADLINE)
    assert not reader.is_alive()
    assert received == []


class TestQueuedChannel:
    @pytest.fixture
    def queued(self):
        """A queued channel whose peer has a fifth of a second to read, and the bare socket at its other end."""
        ours, theirs = socket.socketpair()
        channel = QueuedChannel(ours, send_timeout=0.2)
        channel.start()
        yield channel, theirs
        channel.close()
        theirs.close()

    def test_messages_arrive_in_order_from_a_sender_that_never_waits(self):
        ours, theirs = socket.socketpair()
        channel, receiver = QueuedChannel(ours), Channel(theirs)
        channel.start()
        for number in range(300):
            channel.send(EndOfCall("x" * 10_000, number, 1))  # far more than the sockets hold
        assert [message.number for message in itertools.islice(receiver, 300)] == list(range(300))
        channel.close()
        receiver.close()

    def test_a_message_that_a_living_process_does_not_take_is_an_error(self, queued):
        channel, _ = queued
        channel.check()
        channel.send(LogLine("x" * (8 << 20)))

        def is_stuck():
            try:
                channel.check()
            except errors.NodeExitError as error:
                return "taken no message for 0.2 s while some waited" in str(error)
            return False

        assert wait_until(is_stuck, DEADLINE)

    def test_a_process_that_is_gone_is_no_error_of_the_channel(self, queued):
        channel, peer = queued
        peer.close()
        for _ in range(3):
            channel.send(ReleasePort())
        assert list(channel) == []
        assert wait_until(lambda: not channel._sender.is_alive(), DEADLINE)
        channel.check()
