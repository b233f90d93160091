"""What a node sends to the driver for MLflow besides metrics: samples of its host, checkpoints."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfos_ml.agent.member import Member
from tfos_ml.agent.progress_link import ProgressLink
from tfos_ml.agent.system_metrics import SystemMetrics, system_report
from tfos_ml.inference.archive import pack
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.messages import Checkpoint, CheckpointTaken

logger = logging.getLogger(__name__)
KEPT_SYSTEM_REPORTS = 1000  # where they cannot be passed on at once


class NodeTelemetry:
    """Keeps and sends what the run's :class:`tfos_ml.protocol.settings.Telemetry` wants of one node."""

    def __init__(self, member: Member):
        self._task = member.task
        self._label = member.node.label
        self._link: ProgressLink | None = None
        self._system: SystemMetrics | None = None
        self._system_reports: deque[dict[str, Any]] = deque(maxlen=KEPT_SYSTEM_REPORTS)

    def start(self, link: ProgressLink | None) -> None:
        """Begin to sample; what comes goes to the driver over `link`, if there is one."""
        self._link = link
        period = self._task.settings.telemetry.system_metrics
        if period:
            self._system = SystemMetrics(period, self._report_system)
            self._system.start()

    def _report_system(self, sample: dict[str, float]) -> None:
        """Pass a sample on at once, or keep it for the end; called from a thread."""
        report = system_report(self._label, sample)
        if self._link is not None:
            self._link.report(report)
        else:
            self._system_reports.append(report)

    def send_checkpoint(self, checkpoint: Checkpoint, send: Callable[[CheckpointTaken], None]) -> None:
        """Send a checkpoint to the driver in a thread, delete it, and answer the process."""
        threading.Thread(target=self._upload, args=(checkpoint, send), name="checkpoint", daemon=True).start()

    def _upload(self, checkpoint: Checkpoint, send: Callable[[CheckpointTaken], None]) -> None:
        directory, epoch = Path(checkpoint.directory), checkpoint.epoch
        report = {"metrics": checkpoint.metrics, "epoch": epoch, "step": None, "time": checkpoint.time}
        report |= {"label": self._label, "shown": False, "name": f"checkpoint-{epoch}"}
        try:
            if self._task.control is not None:
                with (
                    contextlib.closing(ControlClient(**self._task.control)) as client,
                    tempfile.TemporaryDirectory(dir=directory.parent) as packed,
                ):
                    archive = pack(str(directory), Path(packed))
                    client.send_file(archive, report, self._task.settings.feed_timeout)
        except Exception as error:  # training must not depend on it
            logger.warning("Checkpoint of epoch %d did not reach the driver: %s", epoch, error)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            send(CheckpointTaken())

    def facts(self) -> dict[str, Any]:
        """What goes into the node's report: samples that could not be passed on."""
        return {"system": list(self._system_reports)} if self._system_reports else {}

    def close(self) -> None:
        """End the sampling."""
        if self._system is not None:
            self._system.close()
