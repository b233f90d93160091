"""A node, seen from its Spark task: CLAIM -> JOIN -> RUN -> STOP.

The task is the supervisor of one TensorFlow process. It claims what the node needs (a spool,
a guardian, a port, the process), joins the other nodes, runs (feeds rows, passes messages
on, watches the process), and stops when all nodes that train have ended. What happened
comes back as result rows, or as one ``NodeFailure``.

The nodes that train are *active*; parameter servers, evaluators and workers beside a chief and
parameter servers are *passive*: they are told when the others have ended, and are ended after a
grace (``graces.py``).
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from tfos_ml import errors
from tfos_ml.agent.consensus import Consensus
from tfos_ml.agent.feeder import Feeder
from tfos_ml.agent.graceful_end import log_failure
from tfos_ml.agent.node_output import NodeOutput
from tfos_ml.agent.placement import BarrierPlacement, GatherPlacement, NodePlacement, check_driver, place_of
from tfos_ml.agent.process import ChildProcess, child_environment, describe_exit, new_marker
from tfos_ml.agent.progress_link import ProgressLink, period_for
from tfos_ml.agent.reaper import SUPERVISOR_TIMEOUT, Reaper
from tfos_ml.agent.rendezvous import NodeInfo, Rendezvous, ReservedPort, local_versions, read_infos
from tfos_ml.agent.task_input import LOST as LOST_INPUT
from tfos_ml.agent.task_input import as_they_come, whole
from tfos_ml.agent.telemetry import NodeTelemetry
from tfos_ml.agent.tensorboard import TensorBoard, why_not_started
from tfos_ml.common.redact import redact, secrets_of_uri
from tfos_ml.data import spool
from tfos_ml.data.schema import FeedSchema
from tfos_ml.inference import publishing
from tfos_ml.inference.archive import pack
from tfos_ml.inference.tensorflow_import import USES_KERAS
from tfos_ml.protocol import messages as m
from tfos_ml.protocol import results
from tfos_ml.protocol.addresses import ANY_PORT, BOARD_VARIABLE, NODE_PORTS, NODE_VARIABLE, ports_of_variable
from tfos_ml.protocol.channel import HEARTBEAT, ChannelClosedError, QueuedChannel
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.failure import Failure, NodeFailure
from tfos_ml.protocol.graces import LEASE_SECONDS, Limit, ended_at_work, limit_of, lost_peers
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.paths import LOG_DIR
from tfos_ml.protocol.template import cluster_spec, make_template, tf_config

logger = logging.getLogger(__name__)
CHILD_MODULE = "tfos_ml.worker.main"
COLLATERAL_SECONDS = 5.0
HEARTBEATS = 24  # signs of life of a process within the time after which it counts as stuck
CULPRIT_SECONDS = 10.0  # after that time, within which a process that stands still is found out by its own supervisor
POLL_SECONDS = 0.1
ALONE = make_template(1)
MakeFeeder = Callable[[FeedSchema, spool.SpoolDirectories, Callable[[m.Message], None]], Any]
LOST = (
    "Spark has started the node's task a second time, because its Python worker or executor died; nodes do not come "
    "back one by one. If the host ran out of memory, raise spark.executor.memoryOverhead"
)
FROZEN = (
    "the supervisor of the node was frozen: it gave no sign of life for {seconds:g} s (stopped by a signal or a "
    "debugger, or waiting for a file system that hangs)"
)
MEETING_GRACE_SECONDS = 10.0  # within which the driver, which knows who is missing, is to give up first


def run_node(task: NodeTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of the job: rows in, result rows out."""
    arriving = as_they_come(whole(batches)) if task.schema.columns else ()
    from pyspark import BarrierTaskContext, TaskContext

    if task.barrier:
        yield from supervise(Supervisor(task, BarrierPlacement(BarrierTaskContext.get(), task.control)), arriving)
        return
    assert task.control is not None
    check_driver(task.control)
    context = TaskContext.get()
    place = place_of(context, task.first_rank + context.partitionId(), task.control)
    seat = GatherPlacement(place, task.control, task.template.size, patience=task.lease or LEASE_SECONDS)
    yield from supervise(Supervisor(task, seat), arriving)


def supervise(node: Supervisor, batches: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
    """Lead a node from CLAIM to STOP; rows in, result rows out.

    It ends without rows if it fails and the driver knows.

    Raises
    ------
    NodeFailure
        If it fails and the driver could not be told.
    """
    try:
        yield from _lead(node, batches)
        node.succeeded = True
    except NodeFailure as error:
        node.end_process()  # first: what follows waits for the driver, which may be out of reach
        if not (node.report_failure(error) and node.leave()):
            raise
    finally:
        node.stop()


def _lead(node: Supervisor, batches: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
    try:
        node.check_first()
        node.claim()
        node.join()
        node.run(batches)
        yield from node.results()
    except errors.TfosMlError as error:
        raise node.failure(type(error), str(error)) from error
    except spool.NoRoomError as error:
        raise node.failure(errors.SpoolFullError, str(error)) from error
    except flight.FlightError as error:
        raise node.failure(errors.NodeLostError, f"the driver cannot be reached: {error}") from error


class Supervisor:
    """The state of one node's supervisor."""

    pings_faster = 1  # times as often as progress alone would need it
    needs_driver = False  # which otherwise may be out of reach from the start

    def __init__(self, task: NodeTask, seat: NodePlacement, make_feeder: MakeFeeder = Feeder):
        rank = seat.rank
        self._placement = seat
        self._make_feeder = make_feeder
        self._task = task
        self._me = task.template.nodes[rank]
        self._template = task.template if not task.is_independent else ALONE
        self._role = self._me if not task.is_independent else ALONE.nodes[0]
        self._host = seat.host
        self._threads = seat.cpus
        self._gpus = seat.gpus if self._role.job_name != "ps" else {"CUDA_VISIBLE_DEVICES": ""}
        self._rendezvous = Rendezvous(seat)
        self._active = self._role.rank in self._template.feed_ranks
        self._is_chief = self._role.rank == self._template.chief_rank
        self._is_shown = self._is_chief or self._role.job_name == "evaluator"
        self._is_helper = self._role.rank in self._template.helper_ranks
        self._is_server = not self._active and self._role.job_name != "evaluator"
        self._messages: queue.SimpleQueue[m.Message | errors.VersionMismatchError | None] = queue.SimpleQueue()
        self._consensus = Consensus(self._rendezvous, self._template, self._role.rank, self._send)
        self._infos: list[NodeInfo] = []
        self._ended = False
        self._serves = False  # and does nothing else
        self._ended_at_work: str | None = None
        self._exited = False
        self.succeeded = False
        self._failed: Failure | None = None
        self._fail_at = math.inf
        self._broken_at: float | None = None  # when the process ended of what may be another node's failure
        self._peers_live = False
        self._port = ReservedPort()
        self._reports: list[dict[str, Any]] = []
        self._facts: dict[str, Any] = {}
        self._exported: str | None = None
        self._results: str | None = None
        self._started = self._heard = time.monotonic()
        self._feeder: Any = None
        self._link: ProgressLink | None = None
        self._made: list[str] = []
        self._reaper: Reaper | None = None
        self._child: ChildProcess | None = None
        self._board: TensorBoard | None = None
        self._output = NodeOutput(self._me.label, 0 if task.shares_console else task.verbose, task.template.size)
        self._telemetry = NodeTelemetry(task, self._me.label, self._role.rank == self._template.feed_ranks[0])

    def check_first(self) -> None:
        """Raise if Spark has started this node before: nodes do not come back one by one."""
        if self._placement.is_first():
            return
        if self._placement.attempt == 0:  # not the task failed: Spark tries the whole stage again as its input was lost
            raise self.failure(errors.InputLostError, LOST_INPUT)
        raise self.failure(errors.NodeLostError, LOST)

    # CLAIM

    def claim(self) -> None:
        """Take what the node needs, and start its process: TensorFlow loads while the nodes meet."""
        spool.sweep()
        marker = new_marker(self._task.run_id, self._me.rank)
        scratch = spool.create_scratch()  # what killed processes leave goes with it
        self._made.append(scratch)
        self._directories = spool.create()
        self._made += self._directories.all()
        watch = self._task.lease or SUPERVISOR_TIMEOUT
        frozen = str(self.failure(errors.NodeLostError, FROZEN.format(seconds=watch)))
        self._reaper = Reaper(marker, self._made, watch, frozen)
        self._reserve_port()
        self._log_dir = self._find_log_dir(scratch)
        program = self._task.payload.read()
        self._payload = Path(self._directories.disk) / "payload"
        with spool.room_in(self._directories.disk):
            self._payload.write_bytes(program)
        uses_keras = {USES_KERAS: "1"} if b"keras" in program else {}  # imported while the nodes meet
        own = {"TMPDIR": scratch, HEARTBEAT: str(self._task.heartbeat_timeout / HEARTBEATS), **self._gpus, **uses_keras}
        own.update(self._task.environment)
        environment = child_environment(marker, self._threads, own)
        self._child = ChildProcess(CHILD_MODULE, environment, self._me.label, self._output.printed)
        self._reaper.guard(pid=self._child.pid)
        self._channel = QueuedChannel(self._child.socket)
        self._channel.start()
        self._feeder = self._make_feeder(self._task.schema, self._directories, self._send)
        threading.Thread(target=self._listen, name="messages", daemon=True).start()
        if self._task.settings.tensorboard and self._is_chief:
            self._board = TensorBoard(self._log_dir, self._host, environment, os.getpid(), self._board_port())
        if self._task.control:
            self._reaper.guard(control=self._task.control, rank=self._me.rank)
            client = ControlClient(**self._task.control)
            period = period_for(self._task.template.size) / self.pings_faster
            self._link = ProgressLink(client, self._me.rank, self._progress, period, self._hear)
            self._output.connect(self._link)
        self._telemetry.start(self._link)

    def _listen(self) -> None:
        try:
            for message in self._channel:
                self._heard = time.monotonic()
                self._messages.put(message)
        except errors.VersionMismatchError as error:
            self._messages.put(error)
        else:
            self._messages.put(None)

    def _hear(self, answer: dict[str, Any]) -> None:
        """Take up an answer of the driver; called from a thread."""
        self._peers_live = bool(answer.get("peers_live"))
        self._feeder.hear(answer)

    def _find_log_dir(self, scratch: str) -> str:
        """Where event files go; those of a TensorBoard of ours stay."""
        settings = self._task.settings
        if settings.log_dir:
            return settings.absolute_path(settings.log_dir)
        if settings.tensorboard and os.access(".", os.W_OK):
            return os.path.abspath(f"{LOG_DIR}_{self._task.run_id}")
        return f"{scratch}/{LOG_DIR}"

    def _reserve_port(self) -> None:
        ports, setting = self._task.node_ports, NODE_PORTS
        if self._task.settings.takes_port_variables and ports == ANY_PORT:
            ports, setting = ports_of_variable(NODE_VARIABLE) or ports, NODE_VARIABLE
        self._port.reserve(ports, setting)

    def _board_port(self) -> int:
        settings = self._task.settings
        given = ports_of_variable(BOARD_VARIABLE) if settings.takes_port_variables else None
        return int(settings.tensorboard_port or (given or ANY_PORT)[0])

    def _progress(self) -> dict[str, Any]:
        now = time.monotonic()
        silent = None if self._exited else now - self._heard
        about: dict[str, Any] = {"host": self._host, "child_silent": silent, "returned": self._ended}
        if self._board is not None:
            about |= {"tensorboard": self._board.url, "tensorboard_pid": self._board.pid, "log_dir": self._log_dir}
        if self._is_helper and self._consensus.trained_since and self._works():
            seconds = now - self._consensus.trained_since
            about["works_on"] = {"label": self._me.label, "seconds": seconds, "limit": self._task.graces.worker}
        if self._broken_at is not None:
            about["broken_for"] = now - self._broken_at
        return {**self._feeder.progress(), **about}

    # JOIN

    def join(self) -> None:
        """Meet the other nodes and hand the process all it needs to run the train function."""
        assert self._child is not None
        card = NodeInfo(
            self._role.rank,
            self._role.label,
            self._host,
            self._port.number,
            local_versions(),
            self._child.pid,
            self._feeder.location,
        )
        meeting = self._rendezvous.join(card)
        self._wait(
            meeting.done,
            self._task.reservation_timeout + (0 if self._task.barrier else MEETING_GRACE_SECONDS),
            errors.ReservationTimeoutError,
            f"the nodes did not all meet within reservationTimeout={self._task.reservation_timeout:g} s",
        )
        self._infos = read_infos(meeting.result())
        addresses = [c.address for c in self._infos]
        template = self._template
        start = m.Start(
            payload=str(self._payload),
            directory=str(self._directories.disk),
            rank=self._me.rank,
            job_name=self._role.job_name,
            task_index=self._role.task_index,
            label=self._role.label,
            is_chief=self._is_chief,
            feed_labels=[template.nodes[r].label for r in template.feed_ranks],
            validation_labels=[template.nodes[r].label for r in template.validation_ranks],
            run_id=self._task.run_id,
            cluster_spec=cluster_spec(template, addresses),
            tf_config=tf_config(template, self._role.rank, addresses),
            schema=self._task.schema,
            log_dir=self._log_dir,
            settings=self._task.settings,
        )
        self._send(start)

    # RUN

    def run(self, batches: Iterable[pa.RecordBatch | None]) -> None:
        """Feed all rows, then watch until the process and all active nodes have ended.

        None among `batches` means that there are none now, but may be later.
        """
        for batch in batches:
            if batch is None:
                self._pump(POLL_SECONDS)
            else:
                self._telemetry.see(self._feeder.write(batch))
            self._wait(
                lambda: self._feeder.has_room() or self._reading_ended(),
                self._task.settings.feed_timeout,
                errors.FeedTimeoutError,
                f"the train function took no rows for feedTimeout={self._task.settings.feed_timeout:g} s while "
                "more were waiting. Read them with ctx.dataset() or ctx.get_data_feed(), end the feed with "
                "feed.terminate(), or raise feedTimeout",
            )
            if self._reading_ended():
                break
        if self._ended:
            self._feeder.close()
        else:
            self._feeder.finish()
        while not (self._ended and self._consensus.done_since):
            self._pump(POLL_SECONDS)
            if not (self._active or self._ended):
                self._dismiss()

    def _reading_ended(self) -> bool:
        return self._ended or self._feeder.reading == "terminated"

    def _dismiss(self) -> None:
        """End a passive process that only serves, or whose grace is over."""
        limit = self._limit()
        since = self._consensus.trained_since if self._is_helper else self._dismissed_since()
        if since is None:
            return
        if self._serves:
            self._ended = self._consensus.done_since is not None
        elif time.monotonic() - since > limit.seconds:
            self._ended = True
            self._ended_at_work = ended_at_work(self._role.job_name, self._me.label, limit)

    def _limit(self) -> Limit:
        return limit_of(self._role.job_name, self._task.graces)

    def _dismissed_since(self) -> float | None:
        """When there was nothing left to do for a server or evaluator."""
        return self._consensus.done_since

    def _wait(self, ready: Callable[[], bool], timeout: float, kind: type[errors.TfosMlError], message: str) -> None:
        deadline = time.monotonic() + timeout
        self._pump(0)
        while not ready():
            if time.monotonic() > deadline:
                raise self.failure(kind, message)
            self._pump(POLL_SECONDS)

    def _pump(self, timeout: float) -> None:
        """Handle what has come from the process and from the other nodes; raise if the node failed."""
        try:
            message = self._messages.get(timeout=timeout) if timeout else self._messages.get_nowait()
            while True:
                self._handle(message)
                message = self._messages.get_nowait()
        except queue.Empty:
            pass
        self._check_lease()
        if self._child is not None and not self._exited:
            self._channel.check()
        if self._board is not None and self._board.has_failed:
            raise self.failure(errors.ClusterConfigError, why_not_started(self._board_port()))
        if self._exited:
            self._check_failed()
        elif time.monotonic() - self._heard > self._task.heartbeat_timeout:
            message_text = (
                f"the process gave no sign of life for {self._task.heartbeat_timeout:g} s (stopped, or stuck in C code)"
            )
            raise self.failure(errors.NodeExitError, message_text)
        if self._infos:
            rows = sum(self._feeder.rows.values())
            self._consensus.advance(self._counts, rows if self._ended else None, self._works())

    def _check_lease(self) -> None:
        """Raise if nobody wants the node any more."""
        if self._link is not None and self._link.stop_asked:
            raise self.failure(errors.FitCancelledError, "the driver asked the nodes to stop")
        if self._placement.is_orphan():
            raise self.failure(errors.NodeLostError, "the Spark executor or task that the node belongs to is gone")
        lease, link = self._task.lease, self._link
        if lease is None or link is None or not (link.has_answered or self.needs_driver):
            return  # a driver that never could be reached has not gone
        if link.is_driver_gone:
            raise self.failure(errors.NodeLostError, "the driver is gone: its host refuses connections")
        if time.monotonic() - link.heard_at > lease:
            raise self.failure(errors.NodeLostError, f"the driver has not answered for {lease:g} s")

    def _handle(self, message: m.Message | errors.VersionMismatchError | None) -> None:
        match message:
            case None:
                self._process_ended()
            case errors.VersionMismatchError():
                raise message
            case m.Heartbeat():
                self._serves = message.serves
            case m.Reading():
                self._feeder.reading, self._feeder.keeps_rows = message.how, message.keeps_rows
            case m.ChunkReleased():
                self._feeder.release(message.path)
            case m.RowsTaken():
                self._feeder.touch()
            case m.ChunkRead():
                self._feeder.chunk_read(message.path)
            case m.SegmentRead():
                self._feeder.segment_read(message.number)
            case m.Answers():
                self._feeder.answered(message.path, message.runs)
            case m.ReleasePort():
                self._port.release()
                self._send(m.PortReleased())
            case m.BarrierReached():
                self._consensus.reach_barrier(message.name)
            case m.Report():
                self._report(message)
            case m.LogLine():
                sys.stderr.write(f"[{self._me.label}] {message.text}\n")
                self._output.say(message.text)
            case m.Summary():
                self._facts.update(message.facts)
            case m.Checkpoint():
                self._telemetry.send_checkpoint(message, self._send)
            case m.Exported():
                self._exported = message.directory
            case m.Results():
                self._results = message.path
            case Failure():
                role = self._me
                self._failed = replace(message, role=role.job_name, index=role.task_index, host=self._host)
            case _:
                raise errors.VersionMismatchError(f"the process has sent {message!r}, which is for processes")

    def _report(self, message: m.Report) -> None:
        report = {**vars(message), "label": self._me.label, "shown": self._is_shown}
        self._reports.append(report)
        if self._link is not None:
            self._link.report(report)

    def _process_ended(self) -> None:
        assert self._child is not None
        self._child.wait(10)  # its end of the channel is closed; the exit follows at once
        returncode = self._child.returncode
        self._exited = True
        if returncode == 0 and self._failed is None:
            self._ended = True
            return
        if returncode is None:
            raise self.failure(errors.NodeExitError, "the process closed its channel but does not end")
        code, signal_name, sentence = describe_exit(returncode)
        failure = self._failed or self.failure(errors.NodeExitError, f"the process {sentence}").failure
        self._failed = replace(failure, exit_code=code, signal=signal_name, log_tail=self._child.log_tail())
        may_be_collateral = self._template.size > 1 and (failure.collateral or signal_name == "SIGABRT")
        self._broken_at = time.monotonic() if may_be_collateral else None
        self._fail_at = time.monotonic() + (self._task.heartbeat_timeout + CULPRIT_SECONDS if may_be_collateral else 0)

    def _check_failed(self) -> None:
        """Raise the failure of the process, later if another node's failure may have caused it."""
        if self._consensus.done_since and self._is_server:
            self._ended = True  # a server may well lose its peers at the end
        elif self._consensus.trained_since and self._is_helper and (self._serves or self._broken_at is not None):
            self._ended = True  # of the end of the chief
            self._ended_at_work = None if self._serves else lost_peers(self._me.label, self._failed)
        elif self._failed is not None and (time.monotonic() >= self._fail_at or self._has_no_other_cause()):
            raise NodeFailure(self._failed)

    def _has_no_other_cause(self) -> bool:
        """Whether all other nodes have shown that they live since this node's process ended.

        Whatever has died or stands still is to be named, and by whoever knows of it; not its first victim.
        """
        if self._broken_at is None or not self._peers_live:
            return False
        return time.monotonic() - self._broken_at > COLLATERAL_SECONDS

    def _works(self) -> bool:
        """Whether the process may have work to do that is not done for others."""
        return not (self._ended or self._serves)

    def _counts(self) -> m.RowCounts | None:
        """What the other nodes need to agree on the steps, or why they cannot; None if not known yet."""
        if self._ended:
            return m.RowCounts(why="has ended")
        return self._feeder.counts()

    def _send(self, message: m.Message) -> None:
        """Send a message to the process; if it is gone, its exit is what will be reported."""
        try:
            self._channel.send(message)
        except ChannelClosedError:
            pass

    # STOP

    def results(self) -> Iterator[pa.RecordBatch]:
        """What the node brings home: its report, its results, its SavedModel."""
        exports = self._exported is not None and self._is_chief and self._has_data()
        staged = exports and self._task.export_dir is not None
        if staged:
            self._stage()
        report = {
            "label": self._me.label,
            "address": self._infos[self._role.rank].address,
            "rows": self._feeder.rows["train"],
            "validation_rows": self._feeder.rows["validation"],
            "skipped_rows": self._feeder.skipped,
            "bytes": self._feeder.bytes,
            "seconds": time.monotonic() - self._started,
            "metrics": self._reports,
            "chief": self._is_chief,
            "evaluator": self._role.job_name == "evaluator",
            "staged": staged,
            "ended_at_work": self._ended_at_work,
            **self._telemetry.facts(),
            **self._output.facts(),
            **self._facts,
        }
        rank = self._me.rank
        yield results.row(rank, "report", json.dumps(report).encode())
        yield from self._telemetry.result_rows(rank)
        if self._results is not None:
            yield from results.rows_of_file(rank, "results", self._results)
        if exports and not staged:
            assert self._exported is not None
            archive = pack(self._exported, self._directories.disk)
            yield from results.rows_of_file(rank, "model", archive)

    def _stage(self) -> None:
        """Bring the model to where the driver publishes it from, once all nodes have ended well."""
        assert self._exported is not None
        assert self._task.export_dir is not None
        try:
            publishing.stage(self._exported, self._task.export_dir, self._task.run_id)
        except (OSError, pa.ArrowException) as error:
            uri, why = redact(self._task.export_dir), redact(error, secrets=secrets_of_uri(self._task.export_dir))
            message = f"exportDir={uri!r} cannot be written from {self._host}: {why}"
            raise self.failure(errors.DestinationError, message) from None

    def _has_data(self) -> bool:
        return self._consensus.total_rows > 0 or not self._task.schema.columns

    def end_process(self) -> None:
        """End the process of a node that has failed: it is not to train on, nor to write anything more."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """Give everything back; the guardian does the same should this process be killed first."""
        if self._feeder is not None:
            self._feeder.close()
        self._port.release()
        self._telemetry.close()
        if self._link is not None:
            if self._child is not None:
                self._child.log_tail()  # waits until its last lines are on their way
            self._link.close()
        reported = False
        try:
            if self._reaper is not None:
                # A failed node may be killed at any moment, so there the guardian reports that all is gone.
                reported = self._reaper.finish(report=not self.succeeded) and not self.succeeded
            if self._child is not None:
                self._child.wait(10)
                self._channel.close()
            if self._board is not None:
                self._board.wait(10)
        except Exception:  # what ended the node matters more, and is on its way to the driver
            logger.exception("%s could not be cleaned up in time", self._me.label)
        spool.remove(self._made)  # again, for a node that came to no guardian
        if self._link is not None and not reported:
            self._link.say_gone()

    def report_failure(self, error: NodeFailure) -> bool:
        """Tell the driver at once; Spark tells late, or tries the task again. Whether that is all to be told."""
        kind = error.failure.error
        if not self._task.shares_console and kind is not errors.FitCancelledError:
            log_failure(error.failure)
        if self._task.barrier and kind is errors.InputLostError:
            return False  # Spark ends the job, and knows why
        try:
            return self._placement.report_failure(str(error)) and kind is not errors.InputLostError
        except pa.ArrowException:
            logger.warning("Driver not reachable, so it does not hear of: %s", error)
            return False

    def leave(self) -> bool:
        """End the exchanges with the other nodes, so that the task may end; whether it may."""
        return self._consensus.done_since is not None or self._placement.leave(self._rendezvous)

    def failure(self, kind: type[errors.TfosMlError], message: str) -> NodeFailure:
        """A failure of this node."""
        tail = self._child.log_tail() if self._child is not None else ""
        me = self._me
        return NodeFailure(Failure(kind, message, me.job_name, me.task_index, self._host, log_tail=tail))
