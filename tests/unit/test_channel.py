import itertools
import socket
import threading

import pytest
from conftest import wait_until

from tfos_ml import errors
from tfos_ml.protocol.channel import Channel, QueuedChannel
from tfos_ml.protocol.messages import EndOfCall, LogLine

DEADLINE = 60.0


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


class TestQueuedChannel:
    def test_messages_arrive_in_order_from_a_sender_that_never_waits(self):
        ours, theirs = socket.socketpair()
        channel, receiver = QueuedChannel(ours), Channel(theirs)
        channel.start()
        for number in range(300):
            channel.send(EndOfCall("x" * 10_000, number, 1))  # far more than the sockets hold
        assert [message.number for message in itertools.islice(receiver, 300)] == list(range(300))
        channel.close()
        receiver.close()

    def test_a_message_that_a_living_process_does_not_take_is_an_error(self):
        ours, theirs = socket.socketpair()
        channel = QueuedChannel(ours, send_timeout=0.2)
        channel.start()
        channel.check()
        channel.send(LogLine("x" * (8 << 20)))

        def is_stuck():
            try:
                channel.check()
            except errors.NodeExitError as error:
                return "taken no message for 0.2 s while some waited" in str(error)
            return False

        assert wait_until(is_stuck, DEADLINE)
        channel.close()
        theirs.close()
