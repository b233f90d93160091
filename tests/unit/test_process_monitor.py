"""What the end of a node's process means, watched on real processes that send real messages."""

import time

import pytest
from conftest import wait_until

from tfos_ml import errors
from tfos_ml.agent import process_monitor
from tfos_ml.agent.process import ChildProcess, child_environment
from tfos_ml.agent.process_monitor import ProcessMonitor
from tfos_ml.protocol import messages as m
from tfos_ml.protocol.channel import QueuedChannel

DEADLINE = 20.0
COLLATERAL = 'Failure(errors.TrainFnError, "a collective broke", collateral=True)'
OWN = 'Failure(errors.TrainFnError, "the train function raised")'
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
    monkeypatch.setattr(process_monitor, "COLLATERAL_SECONDS", 0.1)
    monkeypatch.setattr(process_monitor, "CULPRIT_SECONDS", 0.5)
    watched = []

    def watch(lines, heartbeat_timeout=DEADLINE, has_peers=True):
        (tmp_path / "watched_module.py").write_text(PROGRAM + lines)
        child = ChildProcess("watched_module", child_environment("m-monitor", 1, {}), "worker:0")
        channel = QueuedChannel(child.socket)
        channel.start()
        monitor = ProcessMonitor(child, channel, heartbeat_timeout, has_peers)
        watched.append((child, channel))
        monitor.start()
        return monitor

    yield watch
    for child, channel in watched:
        child.kill()
        child.wait(DEADLINE)
        child.log_tail()
        channel.close()


def messages_until_exit(monitor):
    found = []
    deadline = time.monotonic() + DEADLINE
    while not monitor.has_exited and time.monotonic() < deadline:
        found += monitor.messages(0.05)
    assert monitor.has_exited
    return found


def test_messages_come_in_order_before_the_exit_and_heartbeats_are_kept(watch):
    sends = "for i in range(3): channel.send(SegmentRead(i)); channel.send(Heartbeat(i == 1))"
    monitor = watch(f"{sends}\nchannel.send(Returned())")
    assert messages_until_exit(monitor) == [m.SegmentRead(i) for i in range(3)]
    assert (monitor.failure, monitor.serves, monitor.silent) == (None, False, None)
    assert not monitor.is_failure_due(True)
    monitor.check()


@pytest.mark.parametrize(
    ("lines", "code", "signal_name", "text"),
    [
        ("sys.exit(3)", 3, None, "the process exited with code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", None, "SIGSEGV", "the process was ended by SIGSEGV"),
        (f"channel.send({OWN}); sys.exit(1)", 1, None, "the train function raised"),
        (f"channel.send({OWN})", 0, None, "the train function raised"),
        ("", 0, None, process_monitor.UNFINISHED),
    ],
)
def test_a_failure_of_its_own_is_due_at_once(watch, lines, code, signal_name, text):
    monitor = watch(lines)
    messages_until_exit(monitor)
    assert (monitor.failure.exit_code, monitor.failure.signal, monitor.failure.message) == (code, signal_name, text)
    assert monitor.broken_at is None
    assert monitor.is_failure_due(peers_live=False)


def test_an_exit_is_seen_although_a_process_that_was_left_behind_holds_the_connection(watch):
    lines = "if os.fork(): channel.send(SegmentRead(7)); channel.send(Returned()); os._exit(0)\nfor _ in channel: pass"
    monitor, found = watch(lines), []
    assert wait_until(lambda: found.extend(monitor.messages(0)) or monitor.check() or monitor.has_exited, 10)
    assert (found, monitor.failure) == ([m.SegmentRead(7)], None)


@pytest.mark.parametrize("lines", [f"channel.send({COLLATERAL}); sys.exit(1)", "os.kill(os.getpid(), signal.SIGABRT)"])
def test_what_may_be_collateral_is_due_once_all_others_have_shown_that_they_live(watch, lines):
    monitor = watch(lines)
    messages_until_exit(monitor)
    assert monitor.broken_at is not None
    assert not monitor.is_failure_due(peers_live=False)
    assert wait_until(lambda: monitor.is_failure_due(peers_live=True), DEADLINE)
    assert not monitor.is_failure_due(peers_live=False)


def test_what_may_be_collateral_is_due_after_the_culprit_must_have_been_found(watch):
    monitor = watch(f"channel.send({COLLATERAL}); sys.exit(1)", heartbeat_timeout=3.0)
    messages_until_exit(monitor)
    assert not monitor.is_failure_due(peers_live=False)
    assert wait_until(lambda: monitor.is_failure_due(peers_live=False), DEADLINE)
    assert time.monotonic() - monitor.broken_at >= 3.5


def test_a_node_without_others_has_no_collateral_failures(watch):
    monitor = watch(f"channel.send({COLLATERAL}); sys.exit(1)", has_peers=False)
    messages_until_exit(monitor)
    assert monitor.is_failure_due(peers_live=False)


def test_a_process_that_gives_no_sign_of_life_is_stuck(watch):
    monitor = watch("channel.send(Heartbeat(True)); time.sleep(600)", heartbeat_timeout=3.0)
    assert wait_until(lambda: list(monitor.messages(0)) or monitor.serves, DEADLINE)
    monitor.check()
    with pytest.raises(errors.NodeExitError, match=r"no sign of life for 3 s \(stopped, or stuck in C code\)"):
        wait_until(monitor.check, DEADLINE)


def test_a_process_that_sends_what_is_no_message_is_of_another_version(watch):
    monitor = watch("channel._sock.sendall(b'hello\\n'); time.sleep(600)")
    with pytest.raises(errors.VersionMismatchError, match="same version of tfos_ml"):
        wait_until(lambda: list(monitor.messages(0.05)), DEADLINE)


def test_a_process_that_closes_its_channel_has_to_exit(watch, monkeypatch):
    monkeypatch.setattr(process_monitor, "EXIT_SECONDS", 0.2)
    monitor = watch("channel.close(); time.sleep(600)")
    with pytest.raises(errors.NodeExitError, match="closed its channel but does not end"):
        wait_until(lambda: list(monitor.messages(0.05)), DEADLINE)
