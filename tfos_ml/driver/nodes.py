"""What the driver knows about the nodes of a run: progress, failure, results, and whether they are alive.

Metrics and lines come with the nodes' calls. Their results bring what is left: in a run that is apart, all of them.
A node that outlives its task (``TFCluster``) ends when the driver does not answer for the lease.
"""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import asdict

from tfos_ml.agent.outbox import KEPT_LINES
from tfos_ml.common.session_settings import LEASE
from tfos_ml.common.timeouts import LEASE_GRACE_SECONDS, OUTCOME_SECONDS, RECONNECT_SECONDS, UNHEARD_SECONDS
from tfos_ml.data.spool import NoRoomError, room_in
from tfos_ml.driver.liveness import Liveness
from tfos_ml.errors import NodeLostError, SpoolFullError
from tfos_ml.protocol import control_messages as messages
from tfos_ml.protocol import results
from tfos_ml.protocol.cluster_template import ClusterTemplate, NodeRole
from tfos_ml.protocol.codec import decode
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.messages import LogLine, Report
from tfos_ml.protocol.transport import Service, caller_port

UNKNOWN_HOST = "unknown host"


class Nodes:
    """The state of a run's nodes; for several threads.

    Without `is_wanted`, the nodes are the tasks of one job. With it, they outlive their tasks: they are stopped when
    the program no longer wants them or one has failed, and what they report is not shown while they run.
    """

    def __init__(self, template: ClusterTemplate, is_wanted: Callable[[], bool] | None = None):
        self._template = template
        self._outlive_tasks = is_wanted is not None
        self._is_wanted = is_wanted or (lambda: True)
        self.changed = threading.Condition()  # has the lock of the run's state; notified after each call of a node
        # set once servers and evaluators are no longer wanted; from the start for the tasks of a job
        self.ending: messages.Ending | None = None if self._outlive_tasks else messages.Ending()
        self._calls: dict[int, int] = {}  # number of each node's latest call
        self._taken: dict[int, int] = {}  # number of the next report of each node
        self._gone: set[int] = set()  # nodes whose calls count no more
        self._liveness = Liveness()
        self._present: set[int] = set()
        self._died: set[int] = set()  # tasks whose supervisor is gone; Spark repeats them, or tells why they have ended
        self._ports: dict[int, int] = {}  # of the nodes' connections; 0, or no entry, if unknown
        self._progress: dict[int, messages.NodeProgress] = {}
        self._metrics: dict[int, list[Report]] = {}  # of each node, in order
        self._shown = {template.chief_rank, template.evaluator_rank}  # whose metrics are shown
        self._to_show: list[Report] = []
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._announcements: deque[messages.Announcement] = deque()
        self._announced = 0
        self._results: dict[int, results.Results] = {}
        self._failure: str | None = None
        self._stopping = False
        self._preempted = False

    def service(self) -> Service:
        """The calls of nodes about themselves, and of feed tasks about nodes they cannot reach."""
        actions: dict[type[Any], Callable[[Any], Any]] = {
            messages.ReportProgress: self._take_progress,
            messages.ReportFailure: self._take_failure,
            messages.ReportGone: self._take_gone,
            messages.GetOutcome: self._outcome,
        }
        return Service(actions, {messages.SendResults: self._take_results})

    def take(self, rank: int, reports: Iterable[Report | LogLine]) -> None:
        """Take the reports of a node that have not come before: calls may come twice, and results repeat some."""
        with self.changed:
            for report in reports:
                if report.number < self._taken.get(rank, 0):
                    continue
                self._taken[rank] = report.number + 1
                if isinstance(report, LogLine):
                    self._lines.append(report.text)
                    continue
                if not report.system:
                    self._metrics.setdefault(rank, []).append(report)
                if not self._outlive_tasks and (report.system or rank in self._shown):
                    self._to_show.append(report)

    def _take_progress(self, call: messages.ReportProgress) -> messages.ProgressAnswer:
        """Take what is new in a call, which may come twice or late."""
        is_gone = call.rank in self._gone
        if not is_gone:
            self.take(call.rank, call.reports)
        if not is_gone and call.number > self._calls.get(call.rank, 0):
            self._calls[call.rank], self._progress[call.rank] = call.number, call.progress
            self._present.add(call.rank)
            self._ports[call.rank] = caller_port.get()
            progress = call.progress
            self._liveness.record(call.rank, progress.child_silent, progress.is_failing, progress.broken)
        counts = self._liveness.is_cause(call.rank, call.progress.broken, self._present)
        return messages.ProgressAnswer(
            self.is_stopping(), counts, self.ending, self._news(call.progress.last_announcement), self._preempted
        )

    def _take_failure(self, call: messages.ReportFailure) -> None:
        self._failure = self._failure or call.error

    def _take_gone(self, call: messages.ReportGone) -> None:
        self._present.discard(call.rank)
        self._progress.setdefault(call.rank, messages.NodeProgress())  # its lease need not begin
        self._gone.add(call.rank)
        if self._outlive_tasks and call.rank not in self._results:
            self._lose(call.rank, "the supervisor of the node died")
        elif not call.succeeded:
            self._died.add(call.rank)
            self._liveness.record(call.rank, None)

    def _outcome(self, call: messages.GetOutcome) -> messages.ClusterOutcome:
        self.changed.wait_for(lambda: self._failure or call.rank in self._results, OUTCOME_SECONDS)
        return messages.ClusterOutcome(self._failure, sorted(self._results))

    def _take_results(self, call: messages.SendResults, reader: Any, writer: Any) -> None:
        """Take the result rows of a node; a repeated upload changes nothing, an incomplete one is refused."""
        try:
            with room_in(Path(tempfile.gettempdir()), "TMPDIR"):
                received = results.received(row for chunk in reader for row in results.read_rows(chunk.data))
        except NoRoomError as error:
            with self.changed:
                self._failure = self._failure or Failure(SpoolFullError, f"On the driver, {error}").encode()
                self.changed.notify_all()
            raise
        if not received.rows or received.rows.pop().kind != results.END:
            raise pa.ArrowInvalid(f"the results of rank {call.rank} ended early, after {len(received.rows)} rows")
        with self.changed:
            self._results[call.rank] = received
            self.changed.notify_all()

    # Their state

    def begin_leases(self, hosts: Mapping[int, str]) -> None:
        """Begin the leases of all nodes, once they have met, on `hosts` by rank: one may be lost before it reports."""
        with self.changed:
            if self._failure is not None:
                return
            for rank in hosts.keys() - self._progress.keys() - self._results.keys():
                self._progress[rank] = messages.NodeProgress(host=hosts[rank])
                self._present.add(rank)
                self._liveness.record(rank, None)

    def preempt(self) -> None:
        """Ask the nodes to write a checkpoint, because an executor of theirs leaves."""
        self._preempted = True

    def progress(self) -> dict[int, messages.NodeProgress]:
        """The latest state of each node that has reported, by rank."""
        with self.changed:
            return dict(self._progress)

    def present(self) -> set[int]:
        """Ranks of the nodes that have reported and are not gone."""
        with self.changed:
            return set(self._present)

    def take_reports(self) -> list[Report]:
        """Metrics of the chief and the evaluator, and samples of hosts, that have arrived since the last call."""
        with self.changed:
            reports, self._to_show = self._to_show, []
            return reports

    def take_lines(self, timeout: float = 0) -> list[str]:
        """Lines of output that have arrived since the last call; waits for some, at most `timeout` seconds."""
        with self.changed:
            self.changed.wait_for(lambda: self._lines, timeout)
            lines = list(self._lines)
            self._lines.clear()
            return lines

    def failure(self) -> str | None:
        """The text that the first node that failed has reported, which holds an encoded ``Failure``."""
        with self.changed:
            return self._failure

    def expire_leases(self, lease: float, connected: Callable[[], set[int] | None]) -> None:
        """Count nodes as lost that are silent for their lease, or gone; `connected`: ports of callers, if known."""
        with self.changed:
            limit = lease + LEASE_GRACE_SECONDS
            watched = (self._present | self._died) - self._results.keys()
            silent = self._liveness.silent(watched, min(RECONNECT_SECONDS, limit))
            ports = connected() if silent else None
            for rank, seconds in silent.items():
                if rank in self._died:
                    self._lose(rank, _TASK_DIED.format(seconds=seconds))
                    continue
                leaves = self._progress[rank].returned and not self._outlive_tasks  # Spark will have its results
                if ports is not None and self._ports.get(rank, 0) not in {0, *ports} and not leaves:
                    self._lose(rank, _ALL_KILLED.format(seconds=seconds))
                elif seconds > limit:
                    why = "" if self._outlive_tasks else _WHY_TASKS_ARE_SILENT
                    limit_said = f"({LEASE}={lease:g})"
                    self._lose(rank, f"the node has not been heard of for {seconds:.0f} s{why} {limit_said}")

    def _lose(self, rank: int, message: str) -> None:
        node = self._template.nodes[rank]
        failure = Failure(NodeLostError, message, node.job_name, node.task_index, self.host(rank))
        self._failure = self._failure or failure.encode()
        self._present.discard(rank)  # nobody is left who could say that it is gone

    def host(self, rank: int) -> str:
        """The host of a node, if it has told it."""
        known = self._progress.get(rank)
        return known.host if known is not None and known.host else UNKNOWN_HOST

    def stopped_reading(self) -> set[int]:
        """Nodes that have stopped reading; called with the lock held."""
        return {*self._results, *(rank for rank, known in self._progress.items() if known.stopped_reading)}

    # Requests to them

    def stop(self) -> None:
        """Answer the nodes' next calls with a request to stop."""
        with self.changed:
            self._stopping = True

    def is_stopping(self) -> bool:
        return self._stopping or not self._is_wanted() or (self._outlive_tasks and self._failure is not None)

    def announce(self, call: messages.TrainCall | None) -> int:
        """Announce the end of a call of ``train``, or of the input, to all nodes; returns the announcement's number."""
        with self.changed:
            self._announced += 1
            self._announcements.append(messages.Announcement(self._announced, call))
            return self._announced

    def _news(self, last: int | None) -> list[messages.Announcement]:
        """Announcements that a node has not received yet; those that all have received are dropped."""
        if last is None:
            return []
        news = [announcement for announcement in self._announcements if announcement.serial > last]
        feeding = [self._progress.get(rank) for rank in self._template.feed_ranks if rank not in self._results]
        received_by_all = min((0 if known is None else known.last_announcement or 0 for known in feeding), default=0)
        while self._announcements and self._announcements[0].serial <= received_by_all:
            self._announcements.popleft()
        return news

    def have_read(self, ranks: tuple[int, ...], announcement: int, number: int, timeout: float) -> bool:
        """Whether nodes have received an announcement and read that feed's rows, within `timeout` seconds."""

        def has_read(rank: int) -> bool:
            known = self._progress.get(rank)
            if known is None:
                return rank in self._results
            has_announcement = known.last_announcement is not None and known.last_announcement >= announcement
            return (
                rank in self._results
                or known.stopped_reading
                or (has_announcement and number not in known.unread_calls)
            )

        with self.changed:
            self.changed.wait_for(lambda: self._failure or all(map(has_read, ranks)), timeout)
            return self._failure is None and all(map(has_read, ranks))

    # The end

    def summaries(self, rows: Sequence[Any]) -> dict[int, dict[str, Any]]:
        """What nodes report at their end, by rank, with all their metrics; takes what `rows`, their results, bring."""
        for row in rows:
            if row.kind == results.REPORTS:
                self.take(row.rank, decode(list[Report | LogLine], row.payload))
        return {
            rank: {**decode(dict, payload), "metrics": list(map(asdict, self._metrics.get(rank, ())))}
            for rank, payload in results.joined(rows, "report")
        }

    def results(self) -> results.Results:
        """Results that nodes have uploaded; of nodes that are not tasks of a Spark job, all."""
        with self.changed:
            return results.merged(self._results[rank] for rank in sorted(self._results))

    def have_results(self, ranks: Iterable[int], timeout: float) -> bool:
        """Whether nodes have uploaded their results; waits until one fails, or for `timeout` seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: self._failure or self._results.keys() >= set(ranks), timeout) is True

    def unfinished(self) -> list[NodeRole]:
        """The nodes that have not ended well."""
        with self.changed:
            return [node for node in self._template.nodes if node.rank not in self._results]

    def wait_gone(self, timeout: float) -> bool:
        """Whether all nodes are gone, within `timeout` seconds; one that never reported has ``UNHEARD_SECONDS``."""
        with self.changed:
            if self.changed.wait_for(lambda: not self._present, min(timeout, UNHEARD_SECONDS)):
                return True
            self._present &= self._ports.keys()  # the others have ended before their first report
            return self.changed.wait_for(lambda: not self._present, max(0.0, timeout - UNHEARD_SECONDS))


_ALL_KILLED = (
    "all processes of the node have ended at once, perhaps with its container or host: its connection has ended, and "
    "nothing has been heard from it for {seconds:.0f} s. If memory ran out, raise spark.executor.memoryOverhead"
)
_TASK_DIED = (
    "the Spark Python worker of the node died, perhaps with its executor, and in {seconds:.0f} s Spark has neither "
    "started its task again nor ended the job: perhaps no executor has a free slot"
)
_WHY_TASKS_ARE_SILENT = ": its Spark Python worker is stopped, or its host is cut off from the driver"
