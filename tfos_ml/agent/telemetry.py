"""Sends samples of the node's host to the driver, for MLflow."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tfos_ml.agent.node_identity import NodeIdentity
from tfos_ml.agent.progress_link import ProgressLink

logger = logging.getLogger(__name__)
SYSTEM = "system"  # MLflow shows metrics with this prefix on a separate page
KEPT_SYSTEM_REPORTS = 1000  # kept if they cannot be sent at once


class NodeTelemetry:
    """Collects and sends what the run's :class:`tfos_ml.protocol.node_task.Telemetry` asks of one node."""

    def __init__(self, member: NodeIdentity):
        self._task = member.task
        self._label = member.node.label
        self._link: ProgressLink | None = None
        self._system: _SystemMetrics | None = None
        self._system_reports: deque[dict[str, Any]] = deque(maxlen=KEPT_SYSTEM_REPORTS)

    def start(self, link: ProgressLink | None) -> None:
        """Begin to sample; samples go to the driver over `link`, if there is one."""
        self._link = link
        period = self._task.settings.telemetry.system_metrics
        if period:
            self._system = _SystemMetrics(period, self._report_system)
            self._system.start()

    def _report_system(self, sample: dict[str, float]) -> None:
        """Send a sample at once, or keep it for the end; called from a thread."""
        report = _system_report(self._label, sample)
        if self._link is not None:
            self._link.report(report)
        else:
            self._system_reports.append(report)

    def facts(self) -> dict[str, Any]:
        """The samples that could not be sent before, for the node's report."""
        return {"system": list(self._system_reports)} if self._system_reports else {}

    def close(self) -> None:
        """Stop sampling."""
        if self._system is not None:
            self._system.close()


class _SystemMetrics:
    """Samples CPU, memory, disk, network and GPUs of this host with MLflow's own monitors, every `period` seconds.

    `report` is called from the thread with each sample, a dict of numbers by MLflow's names.
    """

    def __init__(self, period: float, report: Callable[[dict[str, float]], None]):
        self._period = period
        self._report = report
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system metrics", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def _run(self) -> None:
        try:
            monitors = _monitors()
            while not self._closed.is_set():
                self._report(_sample(monitors))
                self._closed.wait(self._period)
        except Exception:  # training must not depend on it
            logger.warning("This node reports no more system metrics", exc_info=True)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(self._period)


def _monitors() -> list[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monitor_classes: list[Any] = [CPUMonitor, DiskMonitor, NetworkMonitor]
    monitors = [monitor_class() for monitor_class in monitor_classes]
    with contextlib.suppress(Exception):  # no GPU, or no library for it
        monitor_classes = [GPUMonitor]
        monitors += [monitor_class() for monitor_class in monitor_classes]
    return monitors


def _sample(monitors: list[Any]) -> dict[str, float]:
    sample: dict[str, float] = {}
    for monitor in monitors:
        monitor.collect_metrics()
        sample.update(monitor.aggregate_metrics())
        monitor.clear_metrics()
    return {name: float(value) for name, value in sample.items()}


def _system_report(label: str, sample: dict[str, float]) -> dict[str, Any]:
    """A sample as a report: metrics ``system/worker_0/cpu_utilization_percentage`` and so on."""
    place = label.replace(":", "_")
    metrics = {f"{SYSTEM}/{place}/{name}": value for name, value in sample.items()}
    about = {"label": label, "shown": False, "system": True}
    return {"metrics": metrics, "epoch": None, "step": None, "time": time.time(), **about}
