"""What the driver hands to the tasks that become nodes, and the settings in it, which train functions need, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfos_ml.common.session_settings import ANY_PORT, SHUFFLE_MEMORY
from tfos_ml.common.timeouts import FEED_TIMEOUT, HEARTBEAT_TIMEOUT
from tfos_ml.data.schema import FeedSchema
from tfos_ml.data.snapshot_layout import SnapshotRows
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.cluster_template import ClusterTemplate
from tfos_ml.protocol.grace_periods import GracePeriods
from tfos_ml.protocol.paths import absolute_path


@dataclass(frozen=True)
class Telemetry:
    """What nodes send to the driver besides their metrics, for ``tfos_ml.mlflow``; nothing by default."""

    example_rows: int = 0  # of the features
    system_metrics: float = 0.0  # seconds between two samples of each node's host


@dataclass(frozen=True)
class NodeSettings:
    """Settings of a run that are the same on all its nodes; most are Params of the estimators."""

    default_fs: str = "file:///"  # URI of Spark's default filesystem
    working_dir: str = "."  # of the driver, as are user and home
    user: str | None = None
    home: str | None = None
    epochs: int = 1
    batch_size: int = 100  # rows of all nodes in one step
    shuffle: bool = True
    seed: int = 0
    pad_value: float = 0
    communication: str = "auto"  # implementation of TensorFlow's collectives
    model_dir: str | None = field(default=None, repr=False)  # may hold a password, as may the next four
    log_dir: str | None = field(default=None, repr=False)
    model_store: str | None = field(default=None, repr=False)  # modelDir for filesystems.open_uri, with credentials
    log_store: str | None = field(default=None, repr=False)  # logDir for it, where TensorFlow cannot write by itself
    files: list[str] = field(default_factory=list, repr=False)  # that nodes read by themselves
    tensorboard: bool = False
    tensorboard_port: int = 0  # 0 is any
    takes_port_variables: bool = False  # whether TENSORFLOW_PORT and TENSORBOARD_PORT of a node count
    signature_def_key: str = "serving_default"
    feed_timeout: float = FEED_TIMEOUT  # seconds that rows, room for rows, or other nodes are waited for
    restart_count: int = 0
    ends_when_preempted: bool = False  # else, as no attempt would follow, the training only saves its state
    checkpoint_steps: int | None = None  # between two checkpoints within an epoch
    validates: bool = False  # whether there are validation rows
    returns: bool = False  # whether the train function's return value goes to the driver
    instances: int | None = None  # of TFParallel, each a cluster of its own
    queues: list[str] | None = None  # of a TFCluster
    encrypts: bool = False  # whether Spark encrypts data between hosts
    allows_plaintext: bool = False  # whether TensorFlow's gRPC may be used all the same
    sums_itself: bool = False  # whether workers without GPUs exchange nothing through TensorFlow's gRPC
    release_port: bool = True  # whether the node's port is freed before the train function is called
    telemetry: Telemetry = Telemetry()
    spool_memory: int | None = None  # bytes of rows that a node holds in memory; None: a share of what is free
    host_nodes: int = 1  # of the run that hold rows on this node's host, once they have met
    shuffle_memory: int = SHUFFLE_MEMORY.default  # bytes of all rows up to which a shuffle permutes all of them

    def absolute_path(self, path: str) -> str:
        """A path of the user's as all nodes understand it; see :func:`tfos_ml.protocol.paths.absolute_path`."""
        return absolute_path(path, self.default_fs, self.working_dir, self.user, self.home)


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
    control: ControlAddress | None  # None if the run is apart
    files: Mapping[str, Artifact] = field(default_factory=dict)  # that the program reads, by name
    snapshot: SnapshotRows | None = None  # that the nodes read; None: Spark feeds the rows
    is_connect_client: bool = False  # whether nodes may well not reach the control server, as that of a Connect client
    barrier: bool = True  # whether the nodes are tasks of a barrier stage; else they meet at the control server
    lease: float | None = None  # seconds without an answer of the driver after which a node ends
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    is_independent: bool = False  # whether each node is a cluster of its own
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT  # seconds without one after which a TensorFlow process counts as stuck
    node_ports: range = ANY_PORT
    shares_console: bool = False  # whether what nodes print comes to the driver's console anyway, as in local mode
    verbose: int = 0  # what of the nodes' output is sent to the driver
    driver_nodes: int = 0  # that run on the host of the driver: those of the first ranks
    idle_seconds: float = 0.0  # that a fork server waits for a next node; 0: all processes are fresh
    fork_owner: int | None = None  # the driver's pid, where its fork server is the nodes' too, as in local mode

    @property
    def uses_grpc(self) -> bool:
        """Whether nodes may connect to each other through TensorFlow, which has no encryption."""
        return self.template.size > 1 and not self.settings.sums_itself
