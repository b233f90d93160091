"""The messages between a node's supervisor and its TensorFlow process.

They go over the socket pair (:mod:`tfos_ml.protocol.channel`). What supervisors exchange with each other,
:class:`RowCounts` and :class:`NodeStatus`, goes as text over Spark's ``allGather`` or the control server.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import field

from tfos_ml.data.schema import FeedSchema
from tfos_ml.data.spool import Chunk
from tfos_ml.protocol.codec import Struct
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.node_task import NodeSettings
from tfos_ml.protocol.training_position import Position

# From the supervisor


class Start(Struct, frozen=True):
    """All nodes have met: run the train function. The first message, and the only one of its kind."""

    payload: str  # file of the pickled train function and its arguments
    directory: str  # for files of the process; deleted when the node ends
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
    secret: str = ""  # of the run's nodes, in hexadecimal digits
    files: dict[str, str] = field(default_factory=dict)  # paths of files that the program reads, by name

    def __repr__(self) -> str:
        return f"Start({self.label!r})"  # without the secret


class ChunkReady(Struct, frozen=True):
    """A chunk of rows of a stream is in the spool and may be read."""

    stream: str
    chunk: Chunk


class EndOfCall(Struct, frozen=True):
    """All chunks of one call of ``TFCluster.train`` have been sent; `epochs` says how often they are to be read."""

    stream: str
    number: int
    epochs: int


class EndOfInput(Struct, frozen=True):
    """No more chunks follow."""


class RowCounts(Struct, frozen=True):
    """What a node knows of its rows once it has all of them, or why they cannot be counted."""

    counts: str | None = None  # rows by source partition, as pack_counts writes them
    why: str = ""  # they cannot be counted, as it goes on after the node's label
    rows: dict[str, int] = field(default_factory=dict)  # by stream, "train" and "validation"
    skipped: int = 0  # left out by ``handleInvalid="skip"``
    extents: list[Any] = field(default_factory=list)  # for each column the bounds of each dimension
    size: int = 0  # of the training rows, in bytes that do not depend on how they are batched


class NodeStatus(Struct, frozen=True):
    """Why a node takes part in an exchange with the others; the default if only they have something to say."""

    rows: int | None = None  # that it was fed, if its process has ended
    barrier: str | None = None  # that its process waits in


class Agreement(Struct, frozen=True):
    """The row counts of all nodes, by label."""

    counts: dict[str, RowCounts]


class BarrierPassed(Struct, frozen=True):
    """All nodes that train have reached a barrier or ended; `error` says what is wrong, if anything is."""

    name: str
    error: str | None


class PortReleased(Struct, frozen=True):
    """The supervisor holds the node's port no longer."""


class Preempted(Struct, frozen=True):
    """An executor of the run leaves: the training is to write a checkpoint, and to end if another attempt follows."""


class ClusterDone(Struct, frozen=True):
    """The nodes that train have ended."""


ToWorker: TypeAlias = (
    Start | ChunkReady | EndOfCall | EndOfInput | Agreement | BarrierPassed | PortReleased | ClusterDone | Preempted
)

# From the TensorFlow process


class Heartbeat(Struct, frozen=True):
    """The process lives; `serves` says whether its train function only waits in ``tf.distribute.Server.join``."""

    serves: bool


class Reading(Struct, frozen=True):
    """How the train function reads its rows: ``"dataset"``, ``"get_data_feed"`` or, no further, ``"terminated"``."""

    how: str
    keeps_rows: bool


class ChunkReleased(Struct, frozen=True):
    """A chunk has been read for the last time; the supervisor deletes it."""

    path: str


class RowsRead(Struct, frozen=True):
    """Rows have been read: a chunk that will be read again, or all of a call; any others are noted once a second."""

    chunk: str | None = None  # its path
    call: int | None = None  # of ``TFCluster.train``


class Answers(Struct, frozen=True):
    """Results of rows: an Arrow file, and ``(inference, number of rows)`` for its rows in order."""

    path: str
    runs: list[tuple[int, int]]


class ReleasePort(Struct, frozen=True):
    """Free the node's port, for TensorFlow to bind it; answered by :class:`PortReleased`."""


class BarrierReached(Struct, frozen=True):
    """The train function waits in a barrier; answered by :class:`BarrierPassed`."""

    name: str


class Report(Struct, frozen=True):
    """Metrics of the train function, or of the node's host. It stays as it is on its way to MLflow and to the bar."""

    metrics: dict[str, float]
    epoch: int | None
    step: int | None
    time: float  # seconds since the epoch
    label: str  # of the node
    system: bool = False  # whether they are those of the host, for MLflow alone
    number: int = 0  # among all reports and lines of the node, set by its supervisor


class LogLine(Struct, frozen=True):
    """Text of ``ctx.log``, of one line or more; on its way to the driver, of one line."""

    text: str
    number: int = 0  # as of :class:`Report`


class Summary(Struct, frozen=True):
    """Facts about the node's part in the run, for ``TFModel.summary``."""

    facts: dict[str, Any]


class Trained(Struct, frozen=True):
    """How far a KerasEstimator has come, or what its last complete checkpoint holds."""

    position: Position
    is_saved: bool


class Exported(Struct, frozen=True):
    """The directory of the SavedModel that the run returns."""

    directory: str


class Results(Struct, frozen=True):
    """The file of what the train function has returned, or answered to its rows."""

    path: str


class Returned(Struct, frozen=True):
    """The train function has returned, and all its messages have been sent: only now does exit code 0 mean success."""


FromWorker: TypeAlias = (
    Heartbeat | Reading | ChunkReleased | RowsRead | Answers | ReleasePort | BarrierReached
    | Report | LogLine | Summary | Trained | Exported | Results | Returned | Failure
)  # fmt: skip
Message: TypeAlias = ToWorker | FromWorker
