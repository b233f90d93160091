"""What a node's train function and supervisor need to know of a run's Params or arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tfos_ml.common.hadoop import default_fs, driver_places
from tfos_ml.protocol.paths import absolute_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEED_TIMEOUT = 600.0


@dataclass(frozen=True)
class Telemetry:
    """What nodes send to the driver besides their metrics, for ``tfos_ml.mlflow``.

    Attributes
    ----------
    example_rows : int
        Rows of the features to send as an example; 0 for none.
    system_metrics : float
        Seconds between two samples of each node's host; 0 for none.
    checkpoint_every : int
        Epochs between two checkpoints; 0 for none.
    """

    example_rows: int = 0
    system_metrics: float = 0.0
    checkpoint_every: int = 0


@dataclass(frozen=True)
class NodeSettings:
    """Settings of a run that are the same on all its nodes.

    Attributes
    ----------
    default_fs : str
        URI of Spark's default filesystem.
    working_dir, user, home : str
        Of the driver: where relative paths, and those with ``~``, lead.
    epochs, batch_size : int
        Passes over the rows, and rows of all nodes in one step.
    shuffle : bool
        Whether ``ctx.dataset()`` shuffles.
    seed : int
        Of the order of rows and of Keras.
    pad_value : float
        Fills rows that are shorter than the longest of their batch.
    communication, protocol : str
        Of TensorFlow's collectives, and of its servers.
    model_dir, log_dir : str or None
        As the user gave them.
    tensorboard : bool
        Whether the chief starts TensorBoard.
    tensorboard_port : int
        Where it listens; 0 is any.
    takes_port_variables : bool
        Whether ``TENSORFLOW_PORT`` and ``TENSORBOARD_PORT`` of the node's environment count.
    signature_def_key : str
        Signature under which models are exported.
    files : list of str
        Files that the nodes read by themselves.
    feed_timeout : float
        Seconds that rows, room for rows, or other nodes may be waited for.
    restart_count : int
        How often the run has been started again.
    validates : bool
        Whether the run has validation rows.
    returns : bool
        Whether the train function's return value is sent to the driver.
    instances : int or None
        Number of instances of ``TFParallel``, each a cluster of its own.
    queues : list of str or None
        Queues of a ``TFCluster``.
    release_port : bool
        Whether the node's port is freed before the train function is called.
    telemetry : Telemetry
        What else nodes send.
    """

    default_fs: str = "file:///"
    working_dir: str = "."
    user: str | None = None
    home: str | None = None
    epochs: int = 1
    batch_size: int = 100
    shuffle: bool = True
    seed: int = 0
    pad_value: float = 0
    communication: str = "auto"
    protocol: str = "grpc"
    model_dir: str | None = field(default=None, repr=False)  # may hold a password
    log_dir: str | None = field(default=None, repr=False)
    tensorboard: bool = False
    tensorboard_port: int = 0
    takes_port_variables: bool = False
    signature_def_key: str = "serving_default"
    files: list[str] = field(default_factory=list, repr=False)
    feed_timeout: float = FEED_TIMEOUT
    restart_count: int = 0
    validates: bool = False
    returns: bool = False
    instances: int | None = None
    queues: list[str] | None = None
    release_port: bool = True
    telemetry: Telemetry = Telemetry()

    @classmethod
    def of_session(cls, spark: SparkSession) -> NodeSettings:
        """The defaults, with the default filesystem and the driver's directories of a session."""
        return cls(default_fs=default_fs(spark), **driver_places(spark))

    def absolute_path(self, path: str) -> str:
        """A path of the user's as all nodes understand it; see :func:`tfos_ml.protocol.paths.absolute_path`."""
        return absolute_path(path, self.default_fs, self.working_dir, self.user, self.home)
