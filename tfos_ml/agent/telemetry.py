"""What a node sends to the driver for MLflow besides metrics: an example, samples of its host, checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from tfos_ml.agent.progress_link import ProgressLink
from tfos_ml.agent.system_metrics import SystemMetrics, system_report
from tfos_ml.agent.upload import send_checkpoint
from tfos_ml.protocol import results
from tfos_ml.protocol.messages import Checkpoint, CheckpointTaken
from tfos_ml.protocol.node_task import NodeTask

KEPT_SYSTEM_REPORTS = 1000  # where they cannot be passed on at once
EXAMPLE_BYTES = results.PAYLOAD_BYTES


class NodeTelemetry:
    """Keeps and sends what the run's :class:`tfos_ml.protocol.settings.Telemetry` wants of one node.

    Parameters
    ----------
    task : NodeTask
        The node's.
    label : str
        The node's role and index.
    gives_example : bool
        Whether this is the node whose first rows are the example.
    """

    def __init__(self, task: NodeTask, label: str, gives_example: bool):
        self._task = task
        self._label = label
        self._rows = task.settings.telemetry.example_rows if gives_example else 0
        self._example: bytes | None = None
        self._link: ProgressLink | None = None
        self._system: SystemMetrics | None = None
        self._system_reports: deque[dict[str, Any]] = deque(maxlen=KEPT_SYSTEM_REPORTS)

    def start(self, link: ProgressLink | None) -> None:
        """Begin to sample; what comes goes to the driver over `link`, if there is one."""
        self._link = link
        period = self._task.settings.telemetry.system_metrics
        if period:
            self._system = SystemMetrics(period, self._report_system)

    def _report_system(self, sample: dict[str, float]) -> None:
        """Pass a sample on at once, or keep it for the end; called from a thread."""
        report = system_report(self._label, sample)
        if self._link is not None:
            self._link.report(report)
        else:
            self._system_reports.append(report)

    def see(self, batch: pa.RecordBatch) -> None:
        """Keep the features of the first rows, of shape (rows, features)."""
        if self._example is not None or not self._rows or not batch.num_rows:
            return
        features = batch.select(self._task.schema.of("feature")).slice(0, self._rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, features.schema) as writer:
            writer.write_batch(features)
        self._example = sink.getvalue().to_pybytes()

    def send_checkpoint(self, checkpoint: Checkpoint, send: Callable[[CheckpointTaken], None]) -> None:
        """Send a checkpoint to the driver in a thread; `send` answers the process when that is done."""
        report = {"metrics": checkpoint.metrics, "epoch": checkpoint.epoch, "step": None, "time": checkpoint.time}
        report |= {"label": self._label, "shown": False, "name": f"checkpoint-{checkpoint.epoch}"}
        send_checkpoint(self._task.control, checkpoint.directory, report, self._task.settings.feed_timeout, send)

    def facts(self) -> dict[str, Any]:
        """What goes into the node's report: samples that could not be passed on."""
        return {"system": list(self._system_reports)} if self._system_reports else {}

    def result_rows(self, rank: int) -> Iterator[pa.RecordBatch]:
        """What the node brings home beside its report: the example, unless it is too large."""
        if self._example is not None and len(self._example) <= EXAMPLE_BYTES:
            yield results.row(rank, "example", self._example)

    def close(self) -> None:
        """End the sampling."""
        if self._system is not None:
            self._system.close()
