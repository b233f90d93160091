"""What the driver hands to the tasks that become nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfos_ml.common.limits import HEARTBEAT_TIMEOUT
from tfos_ml.common.session_settings import ANY_PORT
from tfos_ml.data.schema import FeedSchema
from tfos_ml.data.snapshot_layout import SnapshotRows
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.cluster_template import ClusterTemplate
from tfos_ml.protocol.settings import NodeSettings
from tfos_ml.protocol.shutdown_timeouts import ShutdownTimeouts


@dataclass(frozen=True)
class NodeTask:
    """All that a task needs to become a node; the same for every node of a run."""

    run_id: str  # unique to the run and attempt
    template: ClusterTemplate
    schema: FeedSchema  # of the rows
    payload: Artifact  # the pickled train function and its arguments
    settings: NodeSettings
    environment: dict[str, str] = field(repr=False)  # the user's nodeEnv
    reservation_timeout: float  # seconds within which all nodes must have started
    export_dir: str | None = field(repr=False)  # where the SavedModel is published; None: it comes with the results
    control: dict[str, str] | None = field(repr=False)  # the control server's address and token, if there is one
    files: Mapping[str, Artifact] = field(default_factory=dict)  # that the program reads, by name
    snapshot: SnapshotRows | None = None  # that the nodes read; None: Spark feeds the rows
    is_driver_far: bool = False  # whether nodes may well not reach the control server, as that of a Connect client
    barrier: bool = True  # whether the nodes are tasks of a barrier stage; else they meet at the control server
    lease: float | None = None  # seconds without an answer of the driver after which a node ends
    shutdown_timeouts: ShutdownTimeouts = field(default_factory=ShutdownTimeouts)
    is_independent: bool = False  # whether each node is a cluster of its own
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT  # seconds without one after which a TensorFlow process counts as stuck
    node_ports: range = ANY_PORT
    shares_console: bool = False  # whether what nodes print comes to the driver's console anyway, as in local mode
    verbose: int = 0  # what of the nodes' output is sent to the driver
    first_rank: int = 0  # of a plain job's first task; nodes before it are on the driver
    idle_seconds: float = 0.0  # that a fork server waits for a next node; 0: all processes are fresh
    fork_owner: int | None = None  # the driver's pid, where its fork server is the nodes' too, as in local mode

    @property
    def uses_grpc(self) -> bool:
        """Whether nodes may connect to each other through TensorFlow, which has no encryption."""
        return self.template.size > 1 and not self.settings.sums_itself
