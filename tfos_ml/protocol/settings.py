"""What a node's train function and supervisor need to know of a run's Params or arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tfos_ml.common.limits import FEED_TIMEOUT
from tfos_ml.common.session_settings import SHUFFLE_MEMORY
from tfos_ml.protocol.paths import absolute_path

if TYPE_CHECKING:
    pass


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
