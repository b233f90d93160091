"""What a process sends, and its end, as real processes that send real messages have them."""

import pytest
from conftest import wait_until

from tfos_ml import errors
from tfos_ml.agent.child_process import ChildProcess, child_environment
from tfos_ml.agent.node_events import ProcessExited
from tfos_ml.agent.process_monitor import ProcessMonitor
from tfos_ml.protocol import messages as m
from tfos_ml.protocol.channel import QueuedChannel

DEADLINE = 60.0
PROGRAM = """
import os, signal, socket, sys, time
from tfos_ml import errors
from tfos_ml.protocol.channel import Channel
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.messages import *
channel = Channel(socket.socket(fileno=0))
"""


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Watches a process that runs some lines with a channel to its supervisor."""
    monkeypatch.syspath_prepend(tmp_path)
    watched = []

    def watch(lines, take=lambda message: False):
        (tmp_path / "watched_module.py").write_text(PROGRAM + lines)
        child = ChildProcess("watched_module", child_environment("m-monitor", 1, {}), "worker:0")
        channel = QueuedChannel(child.socket)
        channel.start()
        monitor = ProcessMonitor(child, channel, take)
        watched.append((child, channel))
        monitor.start()
        return monitor

    yield watch
    for child, channel in watched:
        child.kill()
        child.wait(DEADLINE)
        child.log_tail()
        channel.close()


def events_until_exit(monitor):
    events = []
    assert wait_until(lambda: events.extend(monitor.events(0.05)) or ProcessExited in map(type, events), DEADLINE)
    return events


def test_messages_come_in_order_before_the_exit(watch):
    monitor = watch("for i in range(3): channel.send(RowsRead(call=i))\nchannel.send(Returned())")
    assert events_until_exit(monitor) == [*(m.RowsRead(call=i) for i in range(3)), m.Returned(), ProcessExited(0)]
    assert monitor.silent is None
    assert list(monitor.events(0)) == []


def test_what_is_taken_is_no_event(watch):
    monitor = watch(
        "channel.send(LogLine('a line'))\nchannel.send(Returned())", lambda message: isinstance(message, m.LogLine)
    )
    assert events_until_exit(monitor) == [m.Returned(), ProcessExited(0)]


def test_what_cannot_be_taken_is_an_error_where_messages_are_awaited(watch):
    def take(message):
        raise OSError("the disk of the log is full")

    monitor = watch("channel.send(LogLine('a line')); time.sleep(600)", take)
    with pytest.raises(OSError, match="disk of the log"):
        wait_until(lambda: list(monitor.events(0.05)), DEADLINE)


def test_an_exit_is_seen_although_a_process_that_was_left_behind_holds_the_connection(watch):
    lines = (
        "if os.fork(): channel.send(RowsRead(call=7)); channel.send(Returned()); os._exit(0)\nfor _ in channel: pass"
    )
    assert events_until_exit(watch(lines)) == [m.RowsRead(call=7), m.Returned(), ProcessExited(0)]


def test_a_process_that_sends_what_is_no_message_is_of_another_version(watch):
    monitor = watch("channel._sock.sendall(b'hello\\n'); time.sleep(600)")
    with pytest.raises(errors.VersionMismatchError, match="same version of tfos_ml"):
        wait_until(lambda: list(monitor.events(0.05)), DEADLINE)
