"""What the driver hands to the tasks that become nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfos_ml.data.schema import FeedSchema
from tfos_ml.protocol.addresses import ANY_PORT
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.graces import Graces
from tfos_ml.protocol.settings import NodeSettings
from tfos_ml.protocol.template import ClusterTemplate


@dataclass(frozen=True)
class NodeTask:
    """All that a task needs to become a node; the same for every node of a run.

    Attributes
    ----------
    run_id : str
        Unique to the run and attempt.
    template : ClusterTemplate
        The roles.
    schema : FeedSchema
        The columns of the rows.
    payload : Artifact
        The pickled train function and its arguments.
    settings : NodeSettings
        What the train function's context knows of the run.
    environment : dict of str to str
        The user's ``nodeEnv``.
    reservation_timeout : float
        Seconds within which all nodes must have started.
    export_dir : str or None
        URI where the chief publishes its SavedModel; None brings it back with the results.
    control : dict of str to str, or None
        Address and token of the driver's control server, if there is one.
    barrier : bool
        Whether the nodes are tasks of a barrier stage; otherwise they meet at the control server.
    lease : float or None
        Seconds without an answer of the driver after which a node that outlives its task ends.
    graces : Graces
        How long passive nodes may go on at the end.
    is_independent : bool
        Whether each node is a cluster of its own.
    heartbeat_timeout : float
        Seconds without a sign of life of the TensorFlow process after which it counts as stuck.
    node_ports : range
        Ports that nodes may listen on; ``range(0, 1)`` stands for any.
    shares_console : bool
        Whether what nodes print comes to the driver's console, as in local mode.
    verbose : int
        What of the nodes' output is sent to the driver, if it does not come there anyway.
    first_rank : int
        Rank of a plain job's first task; those before it are on the driver.
    """

    run_id: str
    template: ClusterTemplate
    schema: FeedSchema
    payload: Artifact
    settings: NodeSettings
    environment: dict[str, str] = field(repr=False)
    reservation_timeout: float
    export_dir: str | None = field(repr=False)
    control: dict[str, str] | None = field(repr=False)  # holds the run's token
    barrier: bool = True
    lease: float | None = None
    graces: Graces = field(default_factory=Graces)
    is_independent: bool = False
    heartbeat_timeout: float = 120.0
    node_ports: range = ANY_PORT
    shares_console: bool = False
    verbose: int = 0
    first_rank: int = 0
