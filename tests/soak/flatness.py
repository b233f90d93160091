"""What may grow while a program fits and transforms for a long time, sampled; and whether it has."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from conftest import of_another_session

MIB = 1 << 20
WARM_SHARE = 0.2  # of the samples, in which caches fill
SHARED_MEMORY = Path("/dev/shm")
DAEMONS = {"pyspark.daemon", "tfos_ml.agent.daemon"}
SERVER = "tfos_ml.worker.fork_server"  # what it forks shows the same command

Sample = dict[str, float]


@dataclass(frozen=True)
class Bound:
    """How much a quantity may grow over all runs after the warm ones, by the line that fits its samples best."""

    growth: float
    unit: str


BOUNDS = {
    "driver: threads": Bound(1, ""),
    "driver: descriptors": Bound(2, ""),
    "driver: RSS": Bound(24, "MiB"),
    "JVM: threads": Bound(24, ""),  # Spark's pools end theirs after a minute
    "JVM: descriptors": Bound(8, ""),
    "JVM: heap in use": Bound(12, "MiB"),
    "JVM: RSS": Bound(96, "MiB"),
    "Python workers": Bound(1, ""),
    "Python workers: descriptors": Bound(4, ""),
    "Python workers: largest RSS": Bound(48, "MiB"),
    "other processes of ours": Bound(0.5, ""),
    "fork server and scoring: descriptors": Bound(2, ""),
    "fork server and scoring: RSS": Bound(48, "MiB"),
    "artifacts of the session": Bound(0.5, ""),
    "files in shared memory": Bound(0.5, ""),
    "shared memory in use": Bound(4, "MiB"),
    "temporary files": Bound(12, ""),
    "temporary files: size": Bound(4, "MiB"),
}


class Sampler:
    """Looks at the driver's process, its JVM, Spark's Python workers, and what they leave on this host."""

    def __init__(self, spark: Any):
        self._spark = spark
        self._me = psutil.Process()
        self._jvm = next(p for p in self._me.children() if p.name() == "java")
        self.samples: list[Sample] = []

    def take(self) -> None:
        """Take one sample, with all garbage collected."""
        gc.collect()
        runtime = self._spark._jvm.java.lang.Runtime.getRuntime()
        self._spark._jvm.java.lang.System.gc()
        workers, others = _split(self._jvm.children(recursive=True))
        servers = [p for p in others if SERVER in _of(p, lambda p: p.cmdline(), [])]
        temporary = [size for root in _temporary_roots() for size in _sizes(root)]
        ours = [path for path in SHARED_MEMORY.glob("tfos_ml-*") if not of_another_session(path)]
        shared = [size for path in ours for size in (0, *_sizes(path))]
        artifacts = self._spark.sparkContext._jsc.sc().listFiles().size()
        self.samples.append(
            {
                "driver: threads": threading.active_count(),
                "driver: descriptors": self._me.num_fds(),
                "driver: RSS": self._me.memory_info().rss / MIB,
                "JVM: threads": _threads(self._jvm.pid),
                "JVM: descriptors": self._jvm.num_fds(),
                "JVM: heap in use": (runtime.totalMemory() - runtime.freeMemory()) / MIB,
                "JVM: RSS": self._jvm.memory_info().rss / MIB,
                "Python workers": len(workers),
                "Python workers: descriptors": sum(_of(p, lambda p: p.num_fds()) for p in workers),
                "Python workers: largest RSS": max(_of(p, lambda p: p.memory_info().rss) for p in workers) / MIB,
                "other processes of ours": len(others),
                "fork server and scoring: descriptors": sum(_of(p, lambda p: p.num_fds()) for p in servers),
                "fork server and scoring: RSS": sum(_of(p, lambda p: p.memory_info().rss) for p in servers) / MIB,
                "artifacts of the session": artifacts,
                "files in shared memory": len(shared),
                "shared memory in use": sum(shared) / MIB,
                "temporary files": len(temporary),
                "temporary files: size": sum(temporary) / MIB,
            }
        )

    def growth(self) -> dict[str, float]:
        """By how much each quantity has grown since the warm runs, by the line that fits best."""
        counted = self.samples[int(len(self.samples) * WARM_SHARE) :]
        steps = np.arange(len(counted))
        return {
            name: float(np.polyfit(steps, [s[name] for s in counted], 1)[0] * (len(counted) - 1)) for name in BOUNDS
        }


def table(samples: Sequence[Sample], growth: Mapping[str, float]) -> str:
    """First, middle and last samples, and what has grown."""
    warm = int(len(samples) * WARM_SHARE)
    columns = [samples[i] for i in (0, warm, (warm + len(samples)) // 2, -1)]
    lines = [f"{'':38}{'first':>10}{'warm':>10}{'half':>10}{'last':>10}{'growth':>10}{'allowed':>10}"]
    for name, bound in BOUNDS.items():
        values = "".join(f"{column[name]:>10,.1f}" for column in columns)
        lines.append(f"{name:38}{values}{growth[name]:>10,.1f}{bound.growth:>10,.1f} {bound.unit}")
    return "\n".join(lines)


def _split(processes: list[psutil.Process]) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Spark's Python workers with the process that forks them, and others."""
    workers, others = [], []
    for process in processes:
        command = _of(process, lambda p: p.cmdline(), [])
        (workers if DAEMONS & set(command) else others).append(process)
    # Guardians and keepers leave the JVM's tree.
    session = os.environ["TFOS_ML_TEST_SESSION"]
    known = {p.pid for p in [*workers, *others]}
    for process in psutil.process_iter():
        environment = _of(process, lambda p: p.environ(), {})
        command = " ".join(_of(process, lambda p: p.cmdline(), []))
        if environment.get("TFOS_ML_TEST_SESSION") == session and "tfos_ml." in command and process.pid not in known:
            others.append(process)
    return workers, others


def _of(process: psutil.Process, what: Any, otherwise: Any = 0) -> Any:
    try:
        return what(process)
    except psutil.Error:
        return otherwise


def _threads(pid: int) -> int:
    """Threads but those with which Spark's block manager forgets what a job has left, up to 100 for each purpose."""
    names = []
    for file in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            names.append(file.read_text())
    return sum(not name.startswith("block-manager") for name in names)


def _temporary_roots() -> list[Path]:
    roots = {Path(tempfile.gettempdir()), Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()))}
    return [root for root in roots if root.is_dir()]


def _sizes(root: Path) -> Iterator[int]:
    """Of all files and directories below."""
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            try:
                yield os.lstat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue
