"""The events that can happen to a node, and the effects with which its :class:`NodeState` responds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tfos_ml.protocol.control_messages import ProgressAnswer
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.messages import BarrierReached, Heartbeat, Message, NodeStatus, Returned, RowCounts

# Events


@dataclass(frozen=True)
class NodesMet:
    """All nodes know each other's addresses, and the process has the message to start."""


@dataclass(frozen=True)
class RowsCounted:
    """The node knows how many rows it has, or why it cannot know."""

    counts: RowCounts


@dataclass(frozen=True)
class InputOver:
    """The node takes no more rows: all have come, or its process has ended."""


@dataclass(frozen=True)
class Exchanged:
    """An exchange has ended; holds the messages of all nodes by rank."""

    answers: list[str]


@dataclass(frozen=True)
class ProcessExited:
    """The connection to the process has ended; `returncode` is None if the process itself still runs."""

    returncode: int | None


@dataclass(frozen=True)
class DriverSeen:
    """What the node knows about the driver now."""

    answer: ProgressAnswer | None  # the latest; None if the driver has never answered
    silent: float  # seconds since the latest call that was answered
    refuses: bool  # the driver has answered before, and now its host refuses connections


@dataclass(frozen=True)
class Orphaned:
    """The Spark task or executor that the node belongs to has died."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    rows: int  # fed to the process
    silent: float | None  # seconds since the process last sent anything; None once it has exited


FromProcess: TypeAlias = Heartbeat | BarrierReached | Returned | Failure
"""Messages of the process that count as events."""

Event: TypeAlias = (
    FromProcess | NodesMet | RowsCounted | InputOver | Exchanged | ProcessExited | DriverSeen | Orphaned | Tick
)  # fmt: skip


# Effects


@dataclass(frozen=True)
class SendToProcess:
    """Send a message to the process."""

    message: Message


@dataclass(frozen=True)
class Exchange:
    """Begin an exchange with all nodes, which ends with the event :class:`Exchanged`."""

    message: RowCounts | NodeStatus


@dataclass(frozen=True)
class Fail:
    """The node has failed; the failure does not name the node yet."""

    failure: Failure


Effect: TypeAlias = SendToProcess | Exchange | Fail
