"""What a node brings home in the job's result rows: its report, results and SavedModel; large ones are uploaded.

Metrics and lines go to the node's outbox; the rows have what is left there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tfos_ml.agent.node_identity import NodeIdentity
from tfos_ml.agent.outbox import Outbox
from tfos_ml.agent.output import NodeOutput
from tfos_ml.common.filesystems import SLOWEST, within_deadline
from tfos_ml.common.redact import redact, secrets_of_uri
from tfos_ml.common.timeouts import CALL_RETRY_SECONDS, LEASE_SECONDS
from tfos_ml.data.spool import room_in
from tfos_ml.errors import DestinationError
from tfos_ml.inference import archive, publishing
from tfos_ml.protocol import results
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.codec import encode
from tfos_ml.protocol.control_client import NO_ANSWER
from tfos_ml.protocol.control_messages import SendResults
from tfos_ml.protocol.messages import Exported, LogLine, Message, Report, Results, Summary, Trained
from tfos_ml.protocol.training_position import Position
from tfos_ml.protocol.transport import command, connect

EXAMPLE_BYTES = results.PAYLOAD_BYTES
LARGE_BYTES = 4 << 20
"""Larger models do not go through the JVMs of executors and driver, which hold a task's result several times."""


class NodeResult:
    """What the process has reported so far."""

    def __init__(self, member: NodeIdentity, output: NodeOutput, outbox: Outbox):
        self._member, self._output, self._outbox = member, output, outbox
        self._facts: dict[str, Any] = {}  # for the summary
        self.exported: str | None = None  # directory of the SavedModel
        self._results: str | None = None  # file
        self.trained: Position | None = None  # as in NodeProgress
        self.saved: Position | None = None

    def take(self, message: Message) -> bool:
        """Take a message of the process; False if it is about something else. Called in the thread that reads them."""
        match message:
            case Report():
                self._outbox.add(message)
            case LogLine():
                sys.stderr.write(f"[{self._member.run_role.label}] {message.text}\n")
                self._output.log(message.text)
            case Summary():
                self._facts.update(message.facts)
            case Trained(is_saved=True):
                self.saved = message.position
            case Trained():
                self.trained = message.position
            case Exported():
                self.exported = message.directory
            case Results():
                self._results = message.path
            case _:
                return False
        return True

    def rows(
        self, report: dict[str, Any], example: bytes | None, directory: Path, of_task: bool
    ) -> Iterator[pa.RecordBatch]:
        """Result rows of the job; `report` has further entries of the node's report.

        `example`, the features of the first rows, is left out if it is too large. The SavedModel is packed in
        `directory`, unless it goes to the run's ``exportDir``. The large model of a Spark task (`of_task`) goes
        directly to the driver, if the driver can be reached.

        Raises ``DestinationError`` if ``exportDir`` cannot be written, ``NoRoomError`` if the disk is full, and
        ``ArrowException`` if the driver is gone.
        """
        member = self._member
        staged = self.exported is not None and member.task.export_dir is not None
        if self.exported is not None and member.task.export_dir is not None:
            _stage(self.exported, member.task.export_dir, member)
        report = {
            "label": member.run_role.label,
            "chief": member.is_chief,
            "evaluator": member.is_evaluator,
            "staged": staged,
            **report,
            **self._facts,
        }
        yield results.row(member.rank, "report", encode(report))
        for reports in self._outbox.batches():
            yield results.row(member.rank, results.REPORTS, encode(reports))
        if example is not None and len(example) <= EXAMPLE_BYTES:
            yield results.row(member.rank, "example", example)
        if self._results is not None:
            yield from results.rows_of_file(member.rank, "results", self._results)
        if self.exported is not None and not staged:
            with room_in(directory):
                packed, task = archive.pack(self.exported, directory), member.task
            rows = partial(results.rows_of_file, member.rank, results.MODEL, packed)
            if of_task and task.control is not None and packed.stat().st_size > LARGE_BYTES:
                deliver(rows, member.rank, task.control, task.lease or LEASE_SECONDS)
            else:
                yield from rows()


def _stage(exported: str, export_dir: str, member: NodeIdentity) -> None:
    """Copy the model to the place from which the driver publishes it once all nodes have ended well."""
    size = sum(path.stat().st_size for path in Path(exported).rglob("*") if path.is_file())
    seconds = member.task.settings.feed_timeout + size / SLOWEST
    try:
        within_deadline(partial(publishing.stage, exported, export_dir, member.task.run_id), export_dir, seconds)
    except (OSError, pa.ArrowException) as error:
        uri, why = redact(export_dir), redact(error, secrets=secrets_of_uri(export_dir))
        raise DestinationError(f"exportDir={uri!r} cannot be written from {member.host}: {why}") from None


def deliver(rows: Callable[[], Iterable[pa.RecordBatch]], rank: int, control: ControlAddress, patience: float) -> None:
    """Send result rows to the driver, and retry for `patience` seconds; raises ``ArrowException`` if it is gone."""
    deadline = time.monotonic() + patience
    while True:
        try:
            _send(rows(), rank, control)
            return
        except NO_ANSWER:
            if time.monotonic() > deadline:
                raise
            time.sleep(CALL_RETRY_SECONDS)


def _send(rows: Iterable[pa.RecordBatch], rank: int, control: ControlAddress) -> None:
    with connect(control.location, control.token) as client:
        writer, reader = client.do_put(command(SendResults(rank)), results.ARROW_SCHEMA)
        with writer:
            for batch in rows:
                writer.write_batch(batch)
            writer.write_batch(results.row(rank, results.END, b""))
            writer.done_writing()
            while reader.read() is not None:  # until the driver has them
                pass
