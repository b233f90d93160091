"""Sends samples of the node's host to the driver, for MLflow."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

from tfos_ml.agent.node_identity import NodeIdentity
from tfos_ml.agent.outbox import Outbox
from tfos_ml.protocol.messages import Report

logger = logging.getLogger(__name__)
SYSTEM = "system"  # MLflow shows metrics with this prefix on a separate page


class NodeTelemetry:
    """Samples CPU, memory, disk, network and GPUs of this host with MLflow's own monitors, if the run asks for it."""

    def __init__(self, member: NodeIdentity, outbox: Outbox):
        self._period = member.task.settings.telemetry.system_metrics  # 0: never
        self._label = member.run_role.label
        self._outbox = outbox
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system metrics", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        if self._period:
            self._thread.start()

    def _run(self) -> None:
        try:
            monitors = _monitors()
            while not self._closed.is_set():
                self._outbox.add(_system_report(self._label, _sample(monitors)))
                self._closed.wait(self._period)
        except Exception:  # training must not depend on it
            logger.warning("This node reports no more system metrics", exc_info=True)

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
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


def _system_report(label: str, sample: dict[str, float]) -> Report:
    """A sample as a report: metrics ``system/worker_0/cpu_utilization_percentage`` and so on."""
    place = label.replace(":", "_")
    metrics = {f"{SYSTEM}/{place}/{name}": value for name, value in sample.items()}
    return Report(metrics, None, None, time.time(), label, system=True)
