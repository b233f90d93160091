"""A node while its process runs: it joins the others, gets its rows, and ends when its cluster has."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.agent.claim import Claimed
from tfos_ml.agent.consensus import Consensus
from tfos_ml.agent.feeder import Feeder
from tfos_ml.agent.grace_period import GracePeriod
from tfos_ml.agent.identity import NodeIdentity
from tfos_ml.agent.node_output import NodeOutput
from tfos_ml.agent.outcome import Outcome
from tfos_ml.agent.placement import NodePlacement
from tfos_ml.agent.process_monitor import ProcessFailure, ProcessMonitor
from tfos_ml.agent.progress_link import ProgressLink, period_for
from tfos_ml.agent.rendezvous import NodeInfo, Rendezvous, local_versions, read_infos
from tfos_ml.agent.row_source import POLL_SECONDS, MakeRowSource, RowSource
from tfos_ml.agent.telemetry import NodeTelemetry
from tfos_ml.common.timeline import Timeline
from tfos_ml.protocol import messages
from tfos_ml.protocol.channel import ChannelClosedError
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import NodeProgress, ProgressAnswer, WorksOn
from tfos_ml.protocol.graces import ended_at_work, lost_peers
from tfos_ml.protocol.mailbox import PERIOD_SECONDS, MailboxWriter, mailbox_of
from tfos_ml.protocol.template import cluster_spec, tf_config
from tfos_ml.protocol.transport import node_secret

GATHER_GRACE_SECONDS = 10.0  # within which the driver, which knows who is missing, is to give up first
PINGS_OF_DETACHED = 5  # times as many: the driver's announcements come with its answers


@dataclass(frozen=True)
class Detachment:
    """How a node differs that outlives the task which has started it: it depends on the driver, not on Spark."""

    make_source: MakeRowSource
    joined: Callable[[], None]  # called once the node has joined the others
    deliver: Callable[[list[pa.RecordBatch]], None]  # sends its result rows to the driver, as no Spark job does


class NodeRun:
    """The phases JOIN and RUN of one node, and its results; `detachment` is for a node that outlives its task."""

    def __init__(
        self,
        member: NodeIdentity,
        placement: NodePlacement,
        rendezvous: Rendezvous,
        claimed: Claimed,
        output: NodeOutput,
        timeline: Timeline,
        detachment: Detachment | None,
    ):
        self._member, self._task = member, member.task
        self._placement = placement
        self._rendezvous = rendezvous
        self._claimed = claimed
        self._output = output
        self._timeline = timeline
        self._detachment = detachment
        self._telemetry = NodeTelemetry(member)
        self._grace = GracePeriod(member, waits_for_program=detachment is not None)
        has_peers = member.template.size > 1
        self._monitor = ProcessMonitor(claimed.child, claimed.channel, self._task.heartbeat_timeout, has_peers)
        self._consensus = Consensus(rendezvous, member, self._send, self._monitor.wake)
        self._source = self._row_source()
        self._outcome = Outcome()
        self._link: ProgressLink | None = None
        self._infos: list[NodeInfo] = []  # of all nodes, once they have met
        self._ended = False  # the process, in whichever way that is no failure
        self._peers_live = False
        self._started = time.monotonic()

    def _row_source(self) -> RowSource:
        make = Feeder if self._detachment is None else self._detachment.make_source
        return make(self._task, self._claimed.directories, self._send)

    @property
    def is_over(self) -> bool:
        """Whether no exchange with the other nodes is left."""
        return self._consensus.done_since is not None

    def start(self) -> None:
        """Begin to listen: to the process, to feed tasks, to the driver."""
        self._source.start()
        self._monitor.start()
        if self._task.control:
            self._claimed.reaper.guard(control=self._task.control, rank=self._member.rank)
            period = period_for(self._task.template.size) / (PINGS_OF_DETACHED if self._detachment else 1)
            client = ControlClient(**self._task.control)
            self._link = ProgressLink(client, self._member.rank, self._progress, period, self._take_answer)
            self._link.start()
            self._output.connect(self._link)
        self._telemetry.start(self._link)
        self._leave_reports()

    def _leave_reports(self) -> None:
        """Where a client of Spark Connect is out of reach, leave what it shows in ``modelDir``."""
        settings, is_shown = self._task.settings, self._member.is_chief or self._member.is_evaluator
        if self._task.is_driver_far and self._link is None and settings.model_dir and is_shown:
            writer = MailboxWriter(mailbox_of(settings.absolute_path(settings.model_dir), self._task.run_id))
            self._link = ProgressLink(writer, self._member.rank, self._progress, PERIOD_SECONDS)
            self._link.start()

    def _take_answer(self, answer: ProgressAnswer) -> None:
        """Take up an answer of the driver; called in a thread."""
        self._peers_live = answer.peers_live
        self._source.take_answer(answer)
        self._grace.take_answer(answer)

    def _progress(self) -> NodeProgress:
        """What the driver is to know of the node now; called in a thread."""
        now = time.monotonic()
        about: dict[str, Any] = {
            "host": self._member.host,
            "child_silent": self._monitor.silent,
            "returned": self._ended,
        }
        tensorboard = self._claimed.tensorboard
        if tensorboard is not None:
            about |= {"tensorboard": tensorboard.url, "tensorboard_pid": tensorboard.pid}
            about["log_dir"] = self._claimed.log_dir
        if self._member.is_helper and self._consensus.trained_since and self._works:
            seconds = now - self._consensus.trained_since
            limit = self._task.graces.worker
            about["works_on"] = WorksOn(self._member.node.label, seconds, limit)
        if self._monitor.broken_at is not None:
            about["broken_for"] = now - self._monitor.broken_at
        return NodeProgress(**self._source.progress(), **about)

    # JOIN

    def join(self) -> None:
        """Meet the other nodes and hand the process all it needs to run the train function."""
        role, timeout = self._member.role, self._task.reservation_timeout
        port, pid = self._claimed.port.number, self._claimed.child.pid
        mine = NodeInfo(role.rank, role.label, self._member.host, port, local_versions(), pid, self._source.location)
        deadline = self._timeline.began + timeout + (0 if self._task.barrier else GATHER_GRACE_SECONDS)
        infos = read_infos(self._exchanged(asdict(mine), deadline))
        self._timeline.end("meeting")
        self._share_memory([info.host for info in infos])
        self._send(self._start_message([info.address for info in infos]))
        self._infos = infos
        if self._detachment is not None:
            self._detachment.joined()

    def _exchanged(self, message: dict[str, Any], deadline: float) -> list[dict[str, Any]]:
        """The messages of all nodes, by rank."""
        found = self._rendezvous.exchange(message)
        self._pump(0)
        while not found.done():
            if time.monotonic() > deadline:
                raise errors.ReservationTimeoutError(
                    f"the nodes did not all meet within reservationTimeout={self._task.reservation_timeout:g} s"
                )
            self._pump(POLL_SECONDS)
        return found.result()

    def _share_memory(self, hosts: list[str]) -> None:
        """Divide this host's memory among the nodes there that hold rows, before the first row comes."""
        template, claimed = self._member.template, self._claimed
        holders = {*template.feed_ranks, *template.validation_ranks}
        nodes = sum(hosts[rank] == self._member.host for rank in holders)
        budget = claimed.budget.among(max(1, nodes), self._task.settings.spool_memory)
        claimed.directories.budget = budget.shared
        self._claimed = replace(claimed, budget=budget)

    def _start_message(self, addresses: list[str]) -> messages.Start:
        role, template, budget = self._member.role, self._member.template, self._claimed.budget
        return messages.Start(
            payload=str(self._claimed.payload),
            directory=str(self._claimed.directories.disk),
            rank=self._member.rank,
            job_name=role.job_name,
            task_index=role.task_index,
            label=role.label,
            is_chief=self._member.is_chief,
            feed_labels=[template.nodes[rank].label for rank in template.feed_ranks],
            validation_labels=[template.nodes[rank].label for rank in template.validation_ranks],
            run_id=self._task.run_id,
            cluster_spec=cluster_spec(template, addresses),
            tf_config=tf_config(template, role.rank, addresses),
            schema=self._task.schema,
            log_dir=self._claimed.log_dir,
            settings=replace(self._task.settings, spool_memory=budget.size, host_nodes=budget.nodes),
            secret=node_secret(self._task.control["token"]).hex() if self._task.control else "",
        )

    # RUN

    def run(self, batches: Iterable[pa.RecordBatch | None]) -> None:
        """Bring all rows in, then watch until the process and all active nodes have ended.

        Raises ``ProcessFailure`` if the process fails, another error of ours if the node does.
        """
        for idle in self._source.feed(batches):
            self._pump(idle)
            if self._ended and (self._source.rows["train"] or not self._task.schema.columns):
                break  # not before a first row: an input without any is an error
        if self._ended:
            self._source.close()
        else:
            self._source.finish()
        self._timeline.end("rows")
        while not (self._ended and self.is_over):
            self._pump(POLL_SECONDS)
            if not (self._member.is_active or self._ended):
                self._end_passive()
        self._timeline.end("training")

    def _end_passive(self) -> None:
        """End a passive process that only serves, or whose grace is over."""
        since, limit = self._grace.since(self._consensus), self._grace.limit
        if since is None:
            return
        if self._monitor.serves:
            self._ended = self.is_over
        elif time.monotonic() - since > limit.seconds:
            self._ended = True
            node = self._member.node
            self._outcome.ended_at_work = ended_at_work(self._member.role.job_name, node.label, limit)

    def _pump(self, timeout: float) -> None:
        """Take up what has come from the process and from the other nodes; raise if the node has failed."""
        for message in self._monitor.messages(timeout):
            self._take_up(message)
        if self._link is not None:
            lease = self._task.lease if self._task.control else None  # of a driver that answers
            self._link.check(lease, needs_driver=self._detachment is not None)
        if self._placement.is_orphan():
            raise errors.NodeLostError("the Spark executor or task that the node belongs to is gone")
        self._monitor.check()
        if self._claimed.tensorboard is not None:
            self._claimed.tensorboard.check()
        if self._monitor.has_exited:
            self._judge_exit()
        self._source.check()
        if self._infos:
            rows = sum(self._source.rows.values())
            self._consensus.advance(self._counts, rows if self._ended else None, self._works)

    def _take_up(self, message: messages.Message) -> None:
        match message:
            case messages.ReleasePort():
                self._claimed.port.release()
                self._send(messages.PortReleased())
            case messages.BarrierReached():
                self._consensus.reach_barrier(message.name)
            case messages.Report():
                is_shown = self._member.is_chief or self._member.is_evaluator
                report = {**vars(message), "label": self._member.node.label, "shown": is_shown}
                self._outcome.reports.append(report)
                if self._link is not None:
                    self._link.report(report)
            case messages.LogLine():
                sys.stderr.write(f"[{self._member.node.label}] {message.text}\n")
                self._output.say(message.text)
            case messages.Summary():
                self._outcome.facts.update(message.facts)
            case messages.Checkpoint():
                self._telemetry.send_checkpoint(message, self._send)
            case messages.Exported():
                self._outcome.exported = message.directory
            case messages.Results():
                self._outcome.results = message.path
            case _:
                if not self._source.take_up(message):
                    raise errors.VersionMismatchError(f"the process has sent {message!r}, which no supervisor expects")

    def _judge_exit(self) -> None:
        """Raise the failure of the process, later if another node's failure may have caused it."""
        failure = self._monitor.failure
        if failure is None:
            self._ended = True
        elif self.is_over and self._member.is_server:
            self._ended = True  # a server may well lose its peers at the end
        elif self._consensus.trained_since and self._member.is_helper and not self._is_own_failure:
            self._ended = True  # of the end of the chief
            if not self._monitor.serves:
                self._outcome.ended_at_work = lost_peers(self._member.node.label, failure)
        elif self._monitor.is_failure_due(self._peers_live):
            raise ProcessFailure(failure)

    @property
    def _is_own_failure(self) -> bool:
        return not self._monitor.serves and self._monitor.broken_at is None

    @property
    def _works(self) -> bool:
        """Whether the process may have work to do that is not done for others."""
        return not (self._ended or self._monitor.serves)

    def _counts(self) -> messages.RowCounts | None:
        return messages.RowCounts(why="has ended") if self._ended else self._source.counts()

    def _send(self, message: messages.Message) -> None:
        """Send a message to the process; if it is gone, its exit is what will be reported."""
        try:
            self._claimed.channel.send(message)
        except ChannelClosedError:
            pass

    # STOP

    def results(self) -> Iterator[pa.RecordBatch]:
        """The node's result rows; none where they have gone to the driver otherwise."""
        if not (self._member.is_chief and (self._consensus.total_rows or not self._task.schema.columns)):
            self._outcome.exported = None
        source = self._source
        report = {
            "address": self._infos[self._member.role.rank].address,
            "rows": source.rows["train"],
            "validation_rows": source.rows["validation"],
            "skipped_rows": source.skipped,
            "bytes": source.size,
            "seconds": time.monotonic() - self._started,
            "timeline": self._timeline.seconds,
            **self._telemetry.facts(),
            **self._output.facts(),
        }
        example = source.example if self._member.gives_example else None
        is_task = self._detachment is None
        rows = self._outcome.rows(self._member, report, example, self._claimed.directories.disk, is_task)
        if self._detachment is None:
            yield from rows
        else:
            self._detachment.deliver(list(rows))

    def close(self) -> ProgressLink | None:
        """Take no more rows and measure no more; the link to the driver stays open for the last lines."""
        self._source.stop()
        self._telemetry.close()
        return self._link
