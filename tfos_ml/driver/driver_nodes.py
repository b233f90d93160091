"""Parameter servers on the driver's host: processes that hold no task slot of Spark's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import replace

from tfos_ml.agent.detached import DetachedNode, start_detached
from tfos_ml.agent.placement import TaskInfo
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.node_task import NodeTask


class DriverNodes:
    """Nodes in processes of their own; they end when the control server has them stop, or with this process.

    Parameters
    ----------
    task : NodeTask
        What they do.
    program : bytes
        Its payload; executors' files need not be here.
    ranks : iterable of int
        Which nodes.
    host : str
        Address of this host.
    """

    def __init__(self, task: NodeTask, program: bytes, ranks: Iterable[int], host: str):
        task = replace(task, payload=Artifact(task.payload.name, program), shares_console=True)
        infos = [TaskInfo(rank, host, cpus=1, gpus={}) for rank in ranks]
        self._nodes = [DetachedNode(task, info, os.getpid(), is_fed=False) for info in infos]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the processes."""
        for node in self._nodes:
            self._processes.append(start_detached(node))

    def wait(self, timeout: float) -> None:
        """Wait for their ends, `timeout` seconds each; one that outlasts that is killed, and its guardian cleans up."""
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.close()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout)
