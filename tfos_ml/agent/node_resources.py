"""The resources of a node on its host: a spool, a reaper, a port, its TensorFlow process, TensorBoard."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from tfos_ml.agent.child_process import ChildProcess, child_environment, new_marker
from tfos_ml.agent.executor import executor
from tfos_ml.agent.fork_client import ForkServerRef
from tfos_ml.agent.node_identity import NodeIdentity
from tfos_ml.agent.output import LimitedLines
from tfos_ml.agent.reaper import Reaper
from tfos_ml.agent.spark_task import SparkTask
from tfos_ml.agent.tensorboard import TensorBoard
from tfos_ml.common.session_settings import ANY_PORT, NODE_PORTS
from tfos_ml.common.timeouts import END_SECONDS
from tfos_ml.data import spool
from tfos_ml.data.memory_budget import MemoryBudget
from tfos_ml.errors import ClusterConfigError
from tfos_ml.inference.tensorflow_import import USES_KERAS
from tfos_ml.protocol.addresses import NODE_VARIABLE, TENSORBOARD_VARIABLE, described_ports, ports_of_variable
from tfos_ml.protocol.channel import HEARTBEAT, QueuedChannel
from tfos_ml.protocol.paths import LOG_DIR

logger = logging.getLogger(__name__)
CHILD_MODULE = "tfos_ml.worker.main"
HEARTBEATS = 24  # number of heartbeats of a process within its heartbeat timeout


class ReservedPort:
    """A TCP port held until just before TensorFlow binds it: its server does not set ``SO_REUSEPORT``."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.number = 0

    def reserve(self, ports: range = ANY_PORT, setting: str = NODE_PORTS.name) -> None:
        """Bind the first port that is free on all addresses of this host, or raise an error that names the setting."""
        is_dual = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET, socket.SOCK_STREAM)
        if is_dual:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for port in ports:
            with contextlib.suppress(OSError):
                self._socket.bind(("", port))
                self.number = self._socket.getsockname()[1]
                return
        raise ClusterConfigError(
            f"{described_ports(ports, setting)}: none of these {len(ports)} ports is free on {socket.gethostname()}. "
            "Give more: one for each node on a host, two if TFCluster feeds it, and some to spare, since a port may "
            "stay in use for a minute after its last connection."
        )

    def release(self) -> None:
        """Free the port; may be called again."""
        if self._socket is not None:
            self._socket.close()


@dataclass(frozen=True)
class NodeResources:
    """The resources of a node, once it has all of them."""

    directories: spool.SpoolDirectories
    budget: MemoryBudget
    payload: Path  # the pickled train function
    log_dir: str
    port: ReservedPort
    child: ChildProcess
    channel: QueuedChannel  # to the child
    reaper: Reaper
    tensorboard: TensorBoard | None  # on the chief, if the run wants it


class HostResources:
    """Acquires the resources of a node, and releases whatever it has acquired; `printed` gets the process's lines."""

    def __init__(self, member: NodeIdentity, spark_task: SparkTask, printed: LimitedLines | None):
        self._member = member
        self._spark_task = spark_task
        self._printed = printed
        self._directories: list[str] = []
        self._reaper: Reaper | None = None
        self._resources: NodeResources | None = None
        self.port = ReservedPort()
        self.child: ChildProcess | None = None

    def acquire(self) -> NodeResources:
        """Acquire all; raises ``NoRoomError`` without space for files, ``ClusterConfigError`` if no port is free."""
        task, label = self._member.task, self._member.run_role.label
        spool.sweep()
        marker = new_marker()
        program = task.payload.read()
        environment = self._environment(marker, uses_keras=b"keras" in program)
        fork_server = ForkServerRef(task.fork_owner or executor(), task.idle_seconds)
        self._reaper = Reaper(marker, environment, fork_server)  # first, as its start takes seconds
        scratch = self._guarded(spool.create_scratch())[0]  # deleted with whatever killed processes leave in it
        environment["TMPDIR"] = task.environment.get("TMPDIR", scratch)
        budget = MemoryBudget.of_node(task.settings.spool_memory)
        directories = spool.create(budget=budget.shared)
        self._guarded(*directories.all())
        self._reserve_port()
        log_dir = self._find_log_dir(scratch)
        payload = Path(directories.disk) / "payload"
        with spool.room_in(directories.disk):
            payload.write_bytes(program)
        self.child = ChildProcess(CHILD_MODULE, environment, label, self._printed, fork_server)
        self._reaper.guard(pid=self.child.pid, started=self.child.started)
        channel = QueuedChannel(self.child.socket)
        channel.start()
        tensorboard = None
        if task.settings.tensorboard and self._member.is_chief:
            tensorboard = TensorBoard(log_dir, self._member.host, environment, os.getpid(), self._tensorboard_port())
        self._resources = NodeResources(
            directories, budget, payload, log_dir, self.port, self.child, channel, self._reaper, tensorboard
        )
        return self._resources

    def _guarded(self, *directories: str) -> tuple[str, ...]:
        """Have the reaper delete directories, too."""
        assert self._reaper is not None
        self._directories += directories
        self._reaper.guard(directories=self._directories)
        return directories

    def _environment(self, marker: str, uses_keras: bool) -> dict[str, str]:
        task = self._member.task
        heartbeat = str(task.heartbeat_timeout / HEARTBEATS)
        own = {HEARTBEAT: heartbeat, **({USES_KERAS: "1"} if uses_keras else {})}
        gpus = (
            {"CUDA_VISIBLE_DEVICES": ""} if self._member.cluster_role.job_name == "ps" else self._spark_task.info.gpus
        )
        return child_environment(marker, self._spark_task.info.cpus, {**gpus, **own, **task.environment})

    def _find_log_dir(self, scratch: str) -> str:
        """The directory for event files: in `scratch`, which is deleted, unless they should outlive the node."""
        settings = self._member.task.settings
        if settings.log_dir and settings.log_store is None:
            return settings.absolute_path(settings.log_dir)
        if settings.log_store is None and settings.tensorboard and os.access(".", os.W_OK):
            return os.path.abspath(f"{LOG_DIR}_{self._member.task.run_id}")
        return f"{scratch}/{LOG_DIR}"

    def _reserve_port(self) -> None:
        ports, setting = self._member.task.node_ports, NODE_PORTS.name
        if self._member.task.settings.takes_port_variables and ports == ANY_PORT:
            ports, setting = ports_of_variable(NODE_VARIABLE) or ports, NODE_VARIABLE
        self.port.reserve(ports, setting)

    def _tensorboard_port(self) -> int:
        settings = self._member.task.settings
        ports = ports_of_variable(TENSORBOARD_VARIABLE) if settings.takes_port_variables else None
        return settings.tensorboard_port or (ports or ANY_PORT)[0]

    def log_tail(self) -> str:
        return self.child.log_tail() if self.child is not None else ""

    def release(self, report: bool) -> bool:
        """Release all resources; returns whether the reaper has reported that to the driver, if it is to `report`.

        A failed node may be killed at any moment, so its reaper reports instead of this process.
        """
        reported = False
        try:
            if self._reaper is not None:
                reported = self._reaper.finish(report=report) and report
            if self.child is not None:
                self.child.wait(END_SECONDS)
            if self._resources is not None:
                self._resources.channel.close()
                if self._resources.tensorboard is not None:
                    self._resources.tensorboard.wait(END_SECONDS)
        except Exception:  # the error that ended the node matters more, and is being reported
            logger.exception("%s could not be cleaned up in time", self._member.run_role.label)
        spool.remove(self._directories)  # again, for a node that never started its reaper
        return reported
