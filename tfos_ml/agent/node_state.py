"""The state of a node, and what follows from each event. It has no I/O, no threads and no clock.

=========  =====================================================  ==============================================
Phase      What holds                                             What ends it
=========  =====================================================  ==============================================
CLAIMED    its process runs; it waits for the other nodes         all nodes have met
JOINED     all nodes have met; it gets its rows                   all nodes have sent their row counts
RUNNING    the nodes train; they meet at barriers                 all that train have ended
DRAINING   workers beside a chief may still work                  none works; at once in a cluster without them
DONE       no exchange is left; its process may have a timeout    its process has ended, or its timeout is over
ENDED      nothing changes any more
=========  =====================================================  ==============================================

A failure leads from any phase to ENDED. The state of the process is kept beside the phase, since the process may end in
any phase: it RUNS, has FAILED (if this may be the consequence of another node's end, it is judged later), or has
ENDED_WELL.

After the nodes have met, they hold exchanges, one after the other. In each, every node sends a message and gets the
messages of all. In the first, nodes send their row counts, and so agree on the number of steps. After that, a node
that trains begins an exchange when it reaches a barrier or has ended, and the others take part.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec.structs import replace

from tfos_ml import errors
from tfos_ml.agent import node_events as events
from tfos_ml.agent.child_process import describe_exit
from tfos_ml.agent.node_identity import NodeIdentity
from tfos_ml.common.timeouts import CULPRIT_SECONDS, FAILED_SECONDS
from tfos_ml.protocol import messages
from tfos_ml.protocol.codec import decode_text
from tfos_ml.protocol.control_messages import Broken, ProgressAnswer
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.grace_periods import ended_at_work, ended_late, grace_period_of, lost_peers

UNFINISHED = (
    "the process exited with code 0 before its train function had returned: the train function or a library called "
    "os._exit(0) or C's exit(0), maybe in a signal handler. Rows may be untrained, so this is no success. Return from "
    "the train function instead"
)


class Phase(enum.IntEnum):
    """How far a node has come; it never goes back."""

    CLAIMED, JOINED, RUNNING, DRAINING, DONE, ENDED = range(6)


class ProcessState(enum.Enum):
    """Whether a node's TensorFlow process runs, and how it ended."""

    RUNS, FAILED, ENDED_WELL = range(3)


class NodeState:
    """The state of one node, `member`; the nodes must have met by `join_deadline`, by the clock of the events.

    One that `is_standalone` outlives its Spark task: it needs the driver, and servers and evaluators stay until the
    driver's program shuts the cluster down.
    """

    def __init__(self, member: NodeIdentity, join_deadline: float, is_standalone: bool = False):
        self._member, self._task = member, member.task
        self._labels = [node.label for node in member.cluster_template.nodes]
        self._join_deadline = join_deadline
        self._is_standalone = is_standalone
        self.phase = Phase.CLAIMED
        self.since: dict[Phase, float] = {}  # when it entered each phase; one exchange may lead through two
        self.process = ProcessState.RUNS
        self.serves = False  # the train function only waits in ``tf.distribute.Server.join``
        self.broken_at: float | None = None  # when the process failed, maybe as the consequence of another node's end
        # how long a node that does not train may go on once nothing is left to do for it
        self.grace = grace_period_of(member.cluster_role.job_name, member.task.grace_periods)
        self.total_rows = 0  # fed to all nodes that train; known once these have ended
        self.ended_at_work: str | None = None  # what is lost if the process was ended while it still worked
        self._failure: Failure | None = None  # of the process
        self._has_returned = False
        self._over_at: float | None = None  # when the process said that its train function had ended
        self._input_is_over = False
        self._in_exchange = False
        self._barrier: str | None = None  # that the process waits in
        self._counts = False  # the driver says that the failure is the cause
        self._program_ended_at: float | None = None
        self._effects: list[events.Effect] = []

    @property
    def is_over(self) -> bool:
        """Whether no exchange with the other nodes is left."""
        return Phase.DONE in self.since

    @property
    def works(self) -> bool:
        """Whether the process may still do work of its own, not just serve others."""
        return not (self.process is ProcessState.ENDED_WELL or self.serves)

    @property
    def is_failing(self) -> bool:
        """Whether the train function has failed, and the process has not ended yet."""
        return self._failure is not None and self.process is ProcessState.RUNS

    def broken(self, now: float) -> Broken | None:
        """What the driver, which decides which failure is the cause, should know of one that may be a consequence."""
        if self.broken_at is None or self.process is not ProcessState.FAILED:
            return None
        return Broken(now - self.broken_at, self._noticed_within)

    @property
    def _noticed_within(self) -> float:
        """Seconds within which the supervisor of a process that stands still has reported it."""
        return self._task.heartbeat_timeout + CULPRIT_SECONDS

    @property
    def wants_counts(self) -> bool:
        """Whether the other nodes now wait for this node's row counts."""
        return self.phase is Phase.JOINED and not self._in_exchange

    def handle(self, event: events.Event, now: float) -> list[events.Effect]:
        """Handle an event that happened at `now`; returns the effects, in order."""
        if self.phase is Phase.ENDED:
            return []
        self._effects = []
        match event:
            case events.NodesMet():
                self._enter(Phase.JOINED, now)
            case events.RowsCounted() if self.wants_counts:
                self._exchange(event.counts)
            case events.InputOver():
                self._input_is_over = True
            case events.Exchanged() if self._in_exchange:
                self._in_exchange = False
                self._on_gathered(event.answers, now)
            case messages.Heartbeat():
                self.serves = event.serves
            case messages.BarrierReached():
                self._barrier = event.name
            case messages.Returned():
                self._has_returned, self._over_at = True, now
            case Failure():
                self._failure, self._over_at = event, now
            case events.ProcessExited() if self.process is ProcessState.RUNS:
                self._exit(event.returncode, now)
            case events.DriverSeen():
                self._on_driver(event, now)
            case events.Orphaned():
                self._fail(errors.NodeLostError, "the Spark executor or task that the node belongs to is gone")
            case events.Tick():
                self._go_on(event, now)
        return self._effects

    def _enter(self, phase: Phase, now: float) -> None:
        if phase > self.phase:
            self.phase = phase
            self.since[phase] = now

    def _fail(self, error: type[errors.TfosMlError], message: str) -> None:
        self._fail_of(Failure(error, message))

    def _fail_of(self, failure: Failure) -> None:
        self.phase = Phase.ENDED
        self._effects.append(events.Fail(failure))

    def _exchange(self, message: messages.RowCounts | messages.NodeStatus) -> None:
        self._in_exchange = True
        self._effects.append(events.Exchange(message))

    # The driver

    def _on_driver(self, driver: events.DriverSeen, now: float) -> None:
        lease = self._task.lease if self._task.control else None
        if driver.answer is not None:
            self._on_driver_answer(driver.answer, now)
        if driver.answer is not None and driver.answer.stop:
            self._fail(errors.FitCancelledError, "the driver asked the nodes to stop")
        elif lease is None or not (driver.answer or self._is_standalone):
            return  # a driver that was never reached cannot be lost
        elif driver.refuses:
            self._fail(errors.NodeLostError, "the driver is gone: its host refuses connections")
        elif driver.silent > lease:
            self._fail(errors.NodeLostError, f"the driver has not answered for {lease:g} s")

    def _on_driver_answer(self, answer: ProgressAnswer, now: float) -> None:
        self._counts = answer.counts
        if answer.ending is None:
            return
        if self._program_ended_at is None:
            self._program_ended_at = now
        if answer.ending.grace is not None and not self._member.is_auxiliary:
            self.grace = answer.ending.grace

    # The process

    def _exit(self, returncode: int | None, now: float) -> None:
        if returncode == 0 and self._failure is None and self._has_returned:
            self.process = ProcessState.ENDED_WELL
            return
        self.process = ProcessState.FAILED
        if returncode is None:
            self._fail(errors.NodeExitError, "the process closed its channel but does not end")
            return
        code, signal_name, sentence = describe_exit(returncode)
        unexplained = f"the process {sentence}" if returncode else UNFINISHED
        failure = self._failure or Failure(errors.NodeExitError, unexplained)
        self._have_failed(replace(failure, exit_code=code, signal=signal_name), now)

    def _have_failed(self, failure: Failure, now: float) -> None:
        self.process = ProcessState.FAILED
        self._failure = failure
        if self._member.cluster_template.size > 1 and (failure.collateral or failure.signal == "SIGABRT"):
            self.broken_at = now

    def _end_overdue(self, now: float) -> None:
        """End a process whose train function has ended long ago: it is stuck on its way out."""
        if self._over_at is None or self.process is not ProcessState.RUNS:
            return
        timeout = self._task.heartbeat_timeout
        if self._failure is not None:
            if now - self._over_at > min(timeout, FAILED_SECONDS):
                self._have_failed(self._failure, now)
        elif now - self._over_at > timeout:
            self.process = ProcessState.ENDED_WELL
            self.ended_at_work = ended_late(self._member.run_role.label, timeout)

    def _judge_failure(self, now: float) -> None:
        """Decide whether the node fails with its process."""
        assert self._failure is not None
        is_own = not self.serves and self.broken_at is None
        if self.is_over and self._member.is_server:
            self.process = ProcessState.ENDED_WELL  # a server may lose its peers at the end
        elif self.phase >= Phase.DRAINING and self._member.is_auxiliary and not is_own:
            self.process = ProcessState.ENDED_WELL  # because of the end of the chief
            if not self.serves:
                self.ended_at_work = lost_peers(self._member.run_role.label, self._failure)
        elif self._is_cause(now):
            self._fail_of(self._failure)

    def _is_cause(self, now: float) -> bool:
        """Whether the failure is not the consequence of another node's: the driver decides, or time if none does."""
        if self.broken_at is None or self._counts:
            return True
        return self._task.control is None and now - self.broken_at > self._noticed_within

    # Time

    def _go_on(self, tick: events.Tick, now: float) -> None:
        timeout = self._task.heartbeat_timeout
        self._end_overdue(now)
        if self.phase is Phase.CLAIMED and now > self._join_deadline:
            limit = f"reservationTimeout={self._task.reservation_timeout:g} s"
            self._fail(errors.ReservationTimeoutError, f"the nodes did not all meet within {limit}")
        elif self.process is ProcessState.RUNS and tick.silent is not None and tick.silent > timeout:
            why = f"the process gave no sign of life for {timeout:g} s (stopped, or stuck in C code)"
            self._fail(errors.NodeExitError, why)
        elif self.process is ProcessState.FAILED:
            self._judge_failure(now)
        if self.phase is Phase.ENDED:
            return
        if not (self._member.is_active or self.process is ProcessState.ENDED_WELL):
            self._end_passive(now)
        self._begin_exchange(tick.rows)
        if self.is_over and self.process is ProcessState.ENDED_WELL and self._input_is_over:
            self._enter(Phase.ENDED, now)

    def _end_passive(self, now: float) -> None:
        """End a process that does not train, if it only serves or has exceeded its timeout."""
        since = self._idle_since()
        if since is None:
            return
        if self.serves:
            self.process = ProcessState.ENDED_WELL if self.is_over else self.process
        elif now - since > self.grace.seconds:
            self.process = ProcessState.ENDED_WELL
            self.ended_at_work = ended_at_work(
                self._member.cluster_role.job_name, self._member.run_role.label, self.grace
            )

    def _idle_since(self) -> float | None:
        """Since when a node that does not train has had nothing to do; None while it has."""
        if self._member.is_auxiliary:
            return self.since.get(Phase.DRAINING)
        done, program = self.since.get(Phase.DONE), self._program_ended_at
        if not self._is_standalone:
            return done
        return None if done is None or program is None else max(done, program)

    # What the nodes agree on

    def _begin_exchange(self, rows: int) -> None:
        """Begin an exchange if this node has something to send, or others may have."""
        if self._in_exchange or not Phase.JOINED <= self.phase <= Phase.DRAINING:
            return
        is_ended = self.process is ProcessState.ENDED_WELL
        if self.phase is Phase.JOINED:
            if is_ended:
                self._exchange(messages.RowCounts(why="has ended"))
        elif self.phase is Phase.DRAINING:
            if not (self._member.is_auxiliary and self.works):
                self._exchange(messages.NodeStatus())
        elif not self._member.is_active:
            self._exchange(messages.NodeStatus())
        elif is_ended:
            self._exchange(messages.NodeStatus(rows=rows))
        elif self._barrier is not None:
            self._exchange(messages.NodeStatus(barrier=self._barrier))

    def _on_gathered(self, answers: list[str], now: float) -> None:
        if self.phase is Phase.JOINED:
            counts = [decode_text(messages.RowCounts, answer) for answer in answers]
            self._effects.append(events.SendToProcess(messages.Agreement(dict(zip(self._labels, counts, strict=True)))))
            self._enter(Phase.RUNNING, now)
        elif self.phase is Phase.RUNNING:
            ranks = self._member.cluster_template.feed_ranks
            self._take_statuses(
                {self._labels[rank]: decode_text(messages.NodeStatus, answers[rank]) for rank in ranks}, now
            )
        elif self.phase is Phase.DRAINING:
            self._be_done(now)

    def _take_statuses(self, active: Mapping[str, messages.NodeStatus], now: float) -> None:
        rows = [status.rows for status in active.values() if status.rows is not None]
        if len(rows) == len(active):
            self.total_rows = sum(rows)
            self._enter(Phase.DRAINING, now)
            if self._member.is_auxiliary:
                self._effects.append(events.SendToProcess(messages.ClusterDone()))
            if not self._member.cluster_template.auxiliary_ranks:
                self._be_done(now)
        elif self._barrier is not None:
            name, self._barrier = self._barrier, None
            elsewhere = {label: status for label, status in active.items() if status.barrier != name}
            self._effects.append(events.SendToProcess(messages.BarrierPassed(name, _barrier_error(name, elsewhere))))

    def _be_done(self, now: float) -> None:
        self._enter(Phase.DONE, now)
        if not self._member.is_auxiliary:
            self._effects.append(events.SendToProcess(messages.ClusterDone()))


def _barrier_error(name: str, elsewhere: Mapping[str, messages.NodeStatus]) -> str | None:
    if not elsewhere:
        return None
    where = {
        label: f"is at barrier {status.barrier!r}" if status.rows is None else "has ended"
        for label, status in elsewhere.items()
    }
    return f"ctx.barrier({name!r}) must be reached by the chief and all workers, but: {where}"
