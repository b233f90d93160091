"""The messages between a node's supervisor and its TensorFlow process, a dataclass each.

Over the socket pair (:mod:`tfos_ml.protocol.channel`) each is one JSON object a line: its class's name as ``type``,
and its fields. What supervisors exchange with each other, :class:`RowCounts` and :class:`NodeStatus`, goes as JSON over
Spark's ``allGather`` or the control server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from tfos_ml.data.schema import FeedSchema
from tfos_ml.data.spool import Chunk
from tfos_ml.protocol.codec import decode_tagged, encode_tagged
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.settings import NodeSettings

# From the supervisor


@dataclass(frozen=True)
class Start:
    """All nodes have met: run the train function. The first message, and the only one of its kind."""

    payload: str  # file of the pickled train function and its arguments
    directory: str  # for files of the process; goes with the node
    rank: int  # in the run
    job_name: str  # in the node's TensorFlow cluster, as are the next two
    task_index: int
    label: str  # "worker:1"
    is_chief: bool
    feed_labels: list[str]  # of the nodes that get training rows
    validation_labels: list[str]
    run_id: str
    cluster_spec: dict[str, list[str]]  # host:port of all nodes by job name
    tf_config: dict[str, Any]
    schema: FeedSchema
    log_dir: str
    settings: NodeSettings
    secret: str = field(default="", repr=False)  # of the run's nodes, in hexadecimal digits


@dataclass(frozen=True)
class ChunkReady:
    """A chunk of rows of a stream is in the spool and may be read."""

    stream: str
    chunk: Chunk


@dataclass(frozen=True)
class Segment:
    """All chunks of one call of ``TFCluster.train`` have been sent; `epochs` says how often they are to be read."""

    stream: str
    number: int
    epochs: int


@dataclass(frozen=True)
class EndOfInput:
    """No more chunks follow."""


@dataclass(frozen=True)
class RowCounts:
    """What a node knows of its rows once it has all of them, or why they cannot be counted."""

    counts: str | None = None  # rows by source partition, as pack_counts writes them
    why: str = ""  # they cannot be counted, as it goes on after the node's label
    rows: dict[str, int] = field(default_factory=dict)  # by stream, "train" and "validation"
    skipped: int = 0  # left out by the policies for nulls and NaN
    extents: list[Any] = field(default_factory=list)  # for each column the bounds of each dimension
    size: int = 0  # of the training rows, in bytes that do not depend on how they are batched


@dataclass(frozen=True)
class NodeStatus:
    """Why a node takes part in an exchange with the others; the default if only they have something to say."""

    rows: int | None = None  # that it was fed, if its process has ended
    barrier: str | None = None  # that its process waits in


@dataclass(frozen=True)
class Agreement:
    """The row counts of all nodes, by label."""

    counts: dict[str, RowCounts]


@dataclass(frozen=True)
class BarrierPassed:
    """All nodes that train have reached a barrier or ended; `error` says what is wrong, if anything is."""

    name: str
    error: str | None


@dataclass(frozen=True)
class PortReleased:
    """The supervisor holds the node's port no longer."""


@dataclass(frozen=True)
class CheckpointTaken:
    """A checkpoint has gone to the driver, or could not, and its directory has been deleted."""


@dataclass(frozen=True)
class ClusterDone:
    """The nodes that train have ended."""


ToWorker: TypeAlias = (
    Start | ChunkReady | Segment | EndOfInput | Agreement | BarrierPassed | PortReleased | CheckpointTaken | ClusterDone
)

# From the TensorFlow process


@dataclass(frozen=True)
class Heartbeat:
    """The process lives; `serves` says whether its train function only waits in ``tf.distribute.Server.join``."""

    serves: bool


@dataclass(frozen=True)
class Reading:
    """How the train function reads its rows: ``"dataset"``, ``"get_data_feed"`` or, no further, ``"terminated"``."""

    how: str
    keeps_rows: bool


@dataclass(frozen=True)
class ChunkReleased:
    """A chunk has been read for the last time; the supervisor deletes it."""

    path: str


@dataclass(frozen=True)
class ChunkRead:
    """A chunk has been read, and will be again."""

    path: str


@dataclass(frozen=True)
class SegmentRead:
    """All rows of one call of ``TFCluster.train`` have been read."""

    number: int


@dataclass(frozen=True)
class RowsTaken:
    """The train function has taken rows; sent once a second at most."""


@dataclass(frozen=True)
class Answers:
    """Results of rows: an Arrow file, and ``(exchange, number of rows)`` for its rows in order."""

    path: str
    runs: list[tuple[int, int]]


@dataclass(frozen=True)
class ReleasePort:
    """Free the node's port, for TensorFlow to bind it; answered by :class:`PortReleased`."""


@dataclass(frozen=True)
class BarrierReached:
    """The train function waits in a barrier; answered by :class:`BarrierPassed`."""

    name: str


@dataclass(frozen=True)
class Report:
    """Metrics of the train function; `time` in seconds since the epoch."""

    metrics: dict[str, float]
    epoch: int | None
    step: int | None
    time: float


@dataclass(frozen=True)
class LogLine:
    """Text of ``ctx.log``, of one line or more."""

    text: str


@dataclass(frozen=True)
class Summary:
    """Facts about the node's part in the run, for ``TFModel.summary``."""

    facts: dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A model exported to a directory after an epoch; answered by :class:`CheckpointTaken`."""

    directory: str
    epoch: int
    metrics: dict[str, float]
    time: float


@dataclass(frozen=True)
class Exported:
    """The directory of the SavedModel that the run returns."""

    directory: str


@dataclass(frozen=True)
class Results:
    """The file of what the train function has returned, or answered to its rows."""

    path: str


@dataclass(frozen=True)
class Returned:
    """The train function has ended, and all that there is to say of it has been said: the end of a process counts."""


FromWorker: TypeAlias = (
    Heartbeat | Reading | ChunkReleased | ChunkRead | SegmentRead | RowsTaken | Answers | ReleasePort | BarrierReached
    | Report | LogLine | Summary | Checkpoint | Exported | Results | Returned | Failure
)  # fmt: skip
Message: TypeAlias = ToWorker | FromWorker
_KINDS: dict[str, type[Message]] = {cls.__name__: cls for cls in get_args(Message)}


def encode_line(message: Message) -> bytes:
    """A message as one line of JSON."""
    return encode_tagged(message).encode() + b"\n"


def decode_line(line: bytes) -> Message:
    """The message that a line holds; ``MessageError`` if its kind is unknown, or :func:`decode` refuses it."""
    return decode_tagged(_KINDS, line)
