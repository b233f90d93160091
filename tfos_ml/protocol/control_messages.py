"""The calls between members of a run, mostly to the driver, and their answers.

A request class names the type of its answer, ``Request[Answer]``. Every request may come twice, or after a later one,
because callers repeat requests without an answer.
"""

from __future__ import annotations

from typing import Generic, TypeVar, get_args

from msgspec import field

from tfos_ml.protocol.codec import Struct
from tfos_ml.protocol.grace_periods import GracePeriod
from tfos_ml.protocol.messages import LogLine, Report
from tfos_ml.protocol.training_position import Position

A = TypeVar("A")


class Request(Struct, Generic[A], frozen=True):
    """A call of the action that has the name of the class."""


def answer_type(request: type[Request[A]]) -> type[A]:
    """The type of the answer to a request class."""
    answer: type[A] = get_args(request.__orig_bases__[-1])[0]  # type: ignore[attr-defined]
    return answer


# The state of nodes


class WorksOn(Struct, frozen=True):
    """A worker that still works after the chief has ended."""

    label: str  # the worker
    seconds: float  # for which it has worked since
    limit: float  # seconds for which it may


class Broken(Struct, frozen=True):
    """A process has failed in a way that may be the consequence of another node's end."""

    seconds: float  # since then
    noticed_within: float  # seconds from then within which a node that stands still is reported


class NodeProgress(Struct, frozen=True):
    """The state of a node when it last reported."""

    host: str = ""  # where it runs
    rows: int = 0  # rows that have reached its train function's spool
    complete: bool = False  # whether it has all its rows
    child_silent: float | None = None  # seconds since its TensorFlow process gave a sign of life; None if it has ended
    is_failing: bool = False  # whether its train function has failed, and the process has not ended yet
    broken: Broken | None = None  # set if its process has failed, perhaps because of another node
    returned: bool = False  # whether its train function has returned
    last_announcement: int | None = None  # number of the last that has reached it; None if it takes none
    unread_calls: list[int] = field(default_factory=list)  # calls of ``train`` whose rows it has not read to the end
    stopped_reading: bool = False  # whether its train function reads no further
    tensorboard: str | None = None  # URL of its TensorBoard
    tensorboard_pid: int | None = None  # process id of its TensorBoard
    log_dir: str | None = None  # directory that TensorBoard shows
    works_on: WorksOn | None = None  # set on a worker that still works after the chief
    trained: Position | None = None  # how far a KerasEstimator had come a moment ago
    saved: Position | None = None  # of its last checkpoint


class TrainCall(Struct, frozen=True):
    """All rows of one call of ``train`` have come."""

    stream: str  # the queue
    number: int  # which call
    epochs: int  # how often its rows are to be read; 0 until the train function reads no further
    feed_timeout: float  # seconds that the rows may wait without one being read


class Announcement(Struct, frozen=True):
    """An announcement of the driver to all nodes, numbered from 1: the end of a call of ``train``, or of the input."""

    serial: int
    call: TrainCall | None


class Ending(Struct, frozen=True):
    """The cluster is being shut down; `grace` is that of servers and evaluators, if the call sets one."""

    grace: GracePeriod | None = None


class ProgressAnswer(Struct, frozen=True):
    """What the driver asks of a node."""

    stop: bool  # whether it is to end now
    counts: bool = False  # whether the failure of its process is the cause, not the consequence of another node's
    ending: Ending | None = None  # set once servers and evaluators are no longer wanted
    announcements: list[Announcement] = field(default_factory=list)  # those that have not reached it yet
    preempted: bool = False  # whether an executor of the run leaves, so that a checkpoint should be written


class ReportProgress(Request[ProgressAnswer], frozen=True):
    """A node's state, and what it has reported since; each report and line of output has its number."""

    rank: int  # the node
    number: int  # of this call, from 1
    progress: NodeProgress  # its state
    reports: list[Report | LogLine]


class ReportFailure(Request[None], frozen=True):
    """A node has failed; `error` is text that holds an encoded ``Failure``."""

    rank: int
    error: str


class ReportGone(Request[None], frozen=True):
    """A node has no processes and no files any more."""

    rank: int
    succeeded: bool


class ClusterOutcome(Struct, frozen=True):
    """How a cluster has ended: its first failure, and the ranks of the nodes that have ended well."""

    failure: str | None
    finished: list[int]


class GetOutcome(Request[ClusterOutcome], frozen=True):
    """Asks why a node cannot be reached; answered as soon as the driver knows, or after some seconds."""

    rank: int


class SendResults(Struct, frozen=True):
    """Comes with a stream of result rows that do not go through Spark."""

    rank: int


# How nodes gather


class Enter(Request[bool], frozen=True):
    """A task starts a node: is it the first? `task` is Spark's id of the task attempt."""

    rank: int
    task: int


class Arrive(Request[bool | None], frozen=True):
    """A task of a barrier stage of so many tasks reaches the driver: is the run connected? None: not decided."""

    rank: int
    size: int


class GatherRound(Request[list[str] | None], frozen=True):
    """A node's message in an exchange of all nodes; without one, it only asks for those of the others.

    The answer has the messages of all nodes, by rank; None until all have sent theirs.
    """

    rank: int
    round: int
    size: int
    message: str | None = None


# Which rows count


class AssignPartition(Request[int | None], frozen=True):
    """A feed task on `host` has rows of a partition: which node gets it? None: that call of ``train`` has ended."""

    number: int
    partition: int
    host: str


GRANTED, TAKEN, PENDING = "granted", "taken", "pending"


class FedPartition(Struct, frozen=True):
    """A partition of a call of ``train``, and which attempt of its feed task has its rows."""

    number: int  # which call
    partition: int
    claimant: str  # a unique name of the attempt


class ClaimPartition(FedPartition, Request[str], frozen=True):
    """One attempt of a feed task asks to deliver a partition. It is ``GRANTED``, ``TAKEN`` or ``PENDING``."""


class CommitPartition(FedPartition, Request[None], frozen=True):
    """A node has given the rows of a granted partition to its train function."""

    rows: int


class ReleasePartition(FedPartition, Request[None], frozen=True):
    """An attempt will not deliver a partition, even if it is granted."""


class Committed(Struct, frozen=True):
    """Rows of a partition that an attempt has committed, None if it has not, and whether it still may."""

    rows: int | None
    pending: bool
    stop: bool


class GetCommitted(FedPartition, Request[Committed], frozen=True):
    """Asks whether an attempt has committed a partition; answered once that is known, or after some seconds."""


class PutPartition(FedPartition, frozen=True):
    """Comes with a stream of a partition's rows from a feed task to a node."""

    stream: str  # name of the queue
    epochs: int  # how often the rows will be read; 0 until the train function reads no further
    feed_timeout: float  # seconds that rows may wait without one being read


class InferRows(Struct, frozen=True):
    """Comes with a stream of rows for inference; attributes as of :class:`PutPartition`."""

    stream: str
    feed_timeout: float


class RequestStop(Request[None], frozen=True):
    """Asks the driver to end the stream that feeds the cluster."""
