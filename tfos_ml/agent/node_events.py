"""What can happen to a node, its events, and what is to be done then, the effects of its :class:`NodeState`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tfos_ml.protocol.control_messages import ProgressAnswer
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.messages import BarrierReached, Heartbeat, Message, NodeStatus, Returned, RowCounts

# Events


@dataclass(frozen=True)
class NodesMet:
    """All nodes know each other's addresses, and the process has been told to start."""


@dataclass(frozen=True)
class RowsCounted:
    """The node knows how many rows it has, or why that cannot be known."""

    counts: RowCounts


@dataclass(frozen=True)
class InputOver:
    """The node takes no more rows: all have come, or its process has ended."""


@dataclass(frozen=True)
class Exchanged:
    """An exchange has ended; the messages of all nodes by rank."""

    answers: list[str]


@dataclass(frozen=True)
class ProcessExited:
    """The connection to the process has ended; `returncode` is None if the process goes on nevertheless."""

    returncode: int | None


@dataclass(frozen=True)
class DriverSeen:
    """What is known of the driver now."""

    answer: ProgressAnswer | None  # its last one; None if it has never answered
    silent: float  # seconds since the call to which it was the answer
    refuses: bool  # it has answered before, and now its host refuses connections


@dataclass(frozen=True)
class Orphaned:
    """The Spark task or executor that the node belongs to has died."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    rows: int  # that the process has been fed
    silent: float | None  # seconds since the process has sent anything; None once it has exited


FromProcess: TypeAlias = Heartbeat | BarrierReached | Returned | Failure
"""Messages of the process that are events."""

Event: TypeAlias = (
    FromProcess | NodesMet | RowsCounted | InputOver | Exchanged | ProcessExited | DriverSeen | Orphaned | Tick
)  # fmt: skip


# Effects


@dataclass(frozen=True)
class Send:
    """Send a message to the process."""

    message: Message


@dataclass(frozen=True)
class Exchange:
    """Begin an exchange with all nodes; :class:`Exchanged` is its end."""

    mine: RowCounts | NodeStatus


@dataclass(frozen=True)
class Fail:
    """The node has failed; the failure has no node's name yet."""

    failure: Failure


Effect: TypeAlias = Send | Exchange | Fail
