"""What a node's host does while it trains: MLflow's own monitors, sampled in a thread."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)
PREFIX = "system"  # MLflow shows metrics of this name on a page of their own


class SystemMetrics:
    """Samples CPU, memory, disk, network and GPUs of this host every `period` seconds.

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
            logger.warning("System metrics of this node are not reported any more", exc_info=True)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(self._period)


def _monitors() -> list[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    kinds: list[Any] = [CPUMonitor, DiskMonitor, NetworkMonitor]
    monitors = [kind() for kind in kinds]
    with contextlib.suppress(Exception):  # no GPU, or no library to ask it
        kinds = [GPUMonitor]
        monitors += [kind() for kind in kinds]
    return monitors


def _sample(monitors: list[Any]) -> dict[str, float]:
    sample: dict[str, float] = {}
    for monitor in monitors:
        monitor.collect_metrics()
        sample.update(monitor.aggregate_metrics())
        monitor.clear_metrics()
    return {name: float(value) for name, value in sample.items()}


def system_report(label: str, sample: dict[str, float]) -> dict[str, Any]:
    """A sample as a report: metrics ``system/worker_0/cpu_utilization_percentage`` and so on."""
    place = label.replace(":", "_")
    metrics = {f"{PREFIX}/{place}/{name}": value for name, value in sample.items()}
    about = {"label": label, "shown": False, "system": True}
    return {"metrics": metrics, "epoch": None, "step": None, "time": time.time(), **about}
