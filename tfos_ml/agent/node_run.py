"""Leads a node while its process runs: it joins the other nodes, gets its rows, and ends with its cluster."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.agent import node_events as events
from tfos_ml.agent.feeder import Feeder, MakeRowSource, RowSource
from tfos_ml.agent.node_identity import NodeIdentity, NodeInfo, local_versions, read_infos
from tfos_ml.agent.node_resources import NodeResources
from tfos_ml.agent.node_result import NodeResult
from tfos_ml.agent.node_state import NodeState, Phase, ProcessState
from tfos_ml.agent.outbox import Outbox
from tfos_ml.agent.output import NodeOutput
from tfos_ml.agent.process_monitor import ProcessMonitor
from tfos_ml.agent.progress_link import ProgressLink, period_for
from tfos_ml.agent.spark_task import SparkTask
from tfos_ml.agent.telemetry import NodeTelemetry
from tfos_ml.common.timeline import Timeline
from tfos_ml.common.timeouts import POLL_SECONDS
from tfos_ml.protocol import messages
from tfos_ml.protocol.cluster_template import cluster_spec, tf_config
from tfos_ml.protocol.codec import encode_text
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import NodeProgress, WorksOn
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.transport import node_secret

STANDALONE_PING_FACTOR = 5  # standalone nodes ping more often: the driver's announcements come with its answers


class NodeFailed(Exception):  # noqa: N818  (it carries a Failure)
    """Raised when a node has failed; `failure` does not name the node yet."""

    def __init__(self, failure: Failure):
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True)
class StandaloneMode:
    """What differs in a node that outlives the task that started it: it depends on the driver, not on Spark."""

    make_source: MakeRowSource
    joined: Callable[[], None]  # called once the node has joined the others
    deliver: Callable[[list[pa.RecordBatch]], None]  # sends its result rows to the driver, as no Spark job does


class NodeRun:
    """A node while its process runs: events go to its :class:`NodeState`, whose effects it carries out."""

    def __init__(
        self,
        member: NodeIdentity,
        spark_task: SparkTask,
        resources: NodeResources,
        output: NodeOutput,
        outbox: Outbox,
        timeline: Timeline,
        standalone: StandaloneMode | None,
    ):
        self._member, self._task = member, member.task
        self._spark_task = spark_task
        self._resources = resources
        self._send = resources.channel.send  # to the process; if that is gone, its exit will be reported
        self._timeline = timeline
        self._standalone = standalone
        self._telemetry = NodeTelemetry(member, outbox)
        # the driver knows which nodes are missing, and ends a connected run
        deadline = math.inf if self._task.control else timeline.began + self._task.reservation_timeout
        self._state = NodeState(member, deadline, is_standalone=standalone is not None)
        self._exchange: Future[list[str]] | None = None  # with the other nodes, under way
        self._source = self._row_source()
        self._link = self._make_link(outbox)
        self._outcome = NodeResult(member, output, outbox)
        self._monitor = ProcessMonitor(resources.child, resources.channel, self._outcome.take)
        self._is_preempted = False  # and the process has been told
        self._address = ""
        self._started = time.monotonic()

    def _row_source(self) -> RowSource:
        make = Feeder if self._standalone is None else self._standalone.make_source
        return make(self._task, self._resources.directories, self._send)

    def start(self) -> None:
        """Start to listen to the process, to feed tasks and to the driver."""
        self._source.start()
        self._monitor.start()
        if self._link is not None:
            self._resources.reaper.guard(control=self._task.control, rank=self._member.rank)
            self._link.start()
        self._telemetry.start()

    def _make_link(self, outbox: Outbox) -> ProgressLink | None:
        if not self._task.control:
            return None
        period = period_for(self._task.template.size) / (STANDALONE_PING_FACTOR if self._standalone else 1)
        client = ControlClient(self._task.control)
        return ProgressLink(client, self._member.rank, outbox, self._progress, period, self._source.take_answer)

    def _progress(self) -> NodeProgress:
        """What the driver should know about the node now; called in a thread."""
        now, state = time.monotonic(), self._state
        about: dict[str, Any] = {
            "host": self._member.host,
            "child_silent": self._monitor.silent,
            "is_failing": state.is_failing,
            "broken": state.broken(now),
            "returned": state.process is ProcessState.ENDED_WELL,
        }
        tensorboard = self._resources.tensorboard
        if tensorboard is not None:
            about |= {"tensorboard": tensorboard.url, "tensorboard_pid": tensorboard.pid}
            about["log_dir"] = self._resources.log_dir
        trained_at = state.since.get(Phase.DRAINING)
        if self._member.is_auxiliary and trained_at is not None and state.works:
            about["works_on"] = WorksOn(self._member.run_role.label, now - trained_at, self._task.grace_periods.worker)
        about |= {"trained": self._outcome.trained, "saved": self._outcome.saved}
        return NodeProgress(**self._source.progress(), **about)

    # JOIN

    def join(self) -> None:
        """Meet the other nodes, and send the process what it needs to run the train function."""
        role, port, pid = self._member.cluster_role, self._resources.port.number, self._resources.child.pid
        info = NodeInfo(role.rank, role.label, self._member.host, port, local_versions(), pid, self._source.location)
        infos = read_infos(self._exchanged(encode_text(info)))
        self._timeline.end("meeting")
        self._address = infos[role.rank].address
        self._share_memory([info.host for info in infos])
        self._send(self._start_message([info.address for info in infos]))
        self._handle(events.NodesMet())
        if self._standalone is not None:
            self._standalone.joined()

    def _exchanged(self, message: str) -> list[str]:
        """The messages of all nodes, by rank."""
        exchange = self._begin_exchange(message)
        self._pump(0)
        while not exchange.done():
            self._pump(POLL_SECONDS)
        return exchange.result()

    def _begin_exchange(self, message: str) -> Future[list[str]]:
        """Send a message to all nodes, in a thread: the call blocks until *every* node has sent one."""
        future: Future[list[str]] = Future()
        future.add_done_callback(lambda _: self._monitor.wake())

        def gather() -> None:
            try:
                future.set_result(self._spark_task.allGather(message))
            except BaseException as error:  # raised where the result is wanted
                future.set_exception(error)

        threading.Thread(target=gather, name="exchange", daemon=True).start()
        return future

    def _share_memory(self, hosts: list[str]) -> None:
        """Divide this host's memory among the nodes there that hold rows, before the first row comes."""
        template, resources = self._member.cluster_template, self._resources
        holders = {*template.feed_ranks, *template.validation_ranks}
        nodes = sum(hosts[rank] == self._member.host for rank in holders)
        budget = resources.budget.among(max(1, nodes), self._task.settings.spool_memory)
        resources.directories.budget = budget.shared
        self._resources = replace(resources, budget=budget)

    def _start_message(self, addresses: list[str]) -> messages.Start:
        role, template, budget = self._member.cluster_role, self._member.cluster_template, self._resources.budget
        return messages.Start(
            payload=str(self._resources.payload),
            directory=str(self._resources.directories.disk),
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
            log_dir=self._resources.log_dir,
            settings=replace(self._task.settings, spool_memory=budget.size, host_nodes=budget.nodes),
            files={name: str(file.path()) for name, file in self._task.files.items()},
            secret=node_secret(self._task.control.token).hex() if self._task.control else "",
        )

    # RUN

    def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read all rows, then watch until the process and all active nodes have ended; may raise ``NodeFailed``."""
        for idle in self._source.feed(batches):
            self._pump(idle)
            if self._is_returned and (self._source.rows["train"] or not self._task.schema.columns):
                break  # but not before the first row, because an input without rows is an error
        if self._is_returned:
            self._source.close()
        else:
            self._source.finish()
        self._timeline.end("rows")
        self._handle(events.InputOver())
        while self._state.phase is not Phase.ENDED:
            self._pump(POLL_SECONDS)
        self._timeline.end("training")

    @property
    def _is_returned(self) -> bool:
        return self._state.process is ProcessState.ENDED_WELL

    def _pump(self, timeout: float) -> None:
        """Handle what the process, the driver and the other nodes have sent; raise if the node has failed."""
        for event in self._monitor.events(timeout):
            self._handle_message(event)
        if self._link is not None:
            self._handle(self._link.driver())
            if self._link.answer is not None and self._link.answer.preempted and not self._is_preempted:
                self._is_preempted = True
                self._send(messages.Preempted())
        if self._spark_task.is_orphan():
            self._handle(events.Orphaned())
        if self._resources.tensorboard is not None:
            self._resources.tensorboard.check()
        if self._exchange is not None and self._exchange.done():
            answers, self._exchange = self._exchange.result(), None
            self._handle(events.Exchanged(answers))
        self._handle(events.Tick(sum(self._source.rows.values()), self._monitor.silent))
        self._source.check()
        if self._state.wants_counts:
            counts = self._source.counts()
            if counts is not None:
                self._handle(events.RowsCounted(counts))

    def _handle(self, event: events.Event) -> None:
        """Pass an event to the node's state, and carry out the effects."""
        for effect in self._state.handle(event, time.monotonic()):
            match effect:
                case events.SendToProcess():
                    self._send(effect.message)
                case events.Exchange():
                    self._exchange = self._begin_exchange(encode_text(effect.message))
                case events.Fail():
                    raise NodeFailed(effect.failure)

    def _handle_message(self, message: messages.Message | events.ProcessExited) -> None:
        match message:
            case (
                events.ProcessExited()
                | messages.Heartbeat()
                | messages.BarrierReached()
                | messages.Returned()
                | Failure()
            ):
                self._handle(message)
            case messages.ReleasePort():
                self._resources.port.release()
                self._send(messages.PortReleased())
            case _:
                if not self._source.handle_message(message):
                    raise errors.VersionMismatchError(f"the process has sent {message!r}, which no supervisor expects")

    # STOP

    def results(self) -> Iterator[pa.RecordBatch]:
        """The node's result rows; none if they went directly to the driver."""
        if not (self._member.is_chief and (self._state.total_rows or not self._task.schema.columns)):
            self._outcome.exported = None
        source = self._source
        report = {
            "address": self._address,
            "rows": source.rows["train"],
            "validation_rows": source.rows["validation"],
            "skipped_rows": source.skipped,
            "bytes": source.size,
            "ended_at_work": self._state.ended_at_work,
            "seconds": time.monotonic() - self._started,
            "timeline": self._timeline.seconds,
        }
        example = source.example if self._member.gives_example else None
        is_task = self._standalone is None
        rows = self._outcome.rows(report, example, self._resources.directories.disk, is_task)
        if self._standalone is None:
            yield from rows
        else:
            self._standalone.deliver(list(rows))

    def close(self) -> ProgressLink | None:
        """Stop taking rows and samples; the link to the driver stays open for the last lines."""
        self._source.stop()
        self._telemetry.close()
        return self._link
