"""Which node a task is, with its role in its TensorFlow cluster; and what it sends to the others when they meet."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import dataclass

from tfos_ml.common.version import __version__
from tfos_ml.errors import VersionMismatchError
from tfos_ml.protocol.addresses import bracketed
from tfos_ml.protocol.cluster_template import ClusterTemplate, NodeRole, make_template
from tfos_ml.protocol.codec import Struct, decode_text
from tfos_ml.protocol.node_task import NodeTask


@dataclass(frozen=True)
class NodeIdentity:
    """One node of a run, and its role among the others."""

    task: NodeTask
    rank: int  # in the run
    host: str
    run_role: NodeRole  # in the run, as failures and lines of output name it
    cluster_template: ClusterTemplate  # of its cluster: the run's, or of this node alone where nodes are independent
    cluster_role: NodeRole  # in its cluster
    is_active: bool  # trains
    is_chief: bool  # writes files that only one node writes
    is_evaluator: bool
    is_auxiliary: bool  # a worker beside a chief and parameter servers
    gives_example: bool  # whether its first rows are the input example of the run

    @property
    def is_server(self) -> bool:
        """Whether the node only serves or helps the nodes that train."""
        return not (self.is_active or self.is_evaluator)


def identity_of(task: NodeTask, rank: int, host: str) -> NodeIdentity:
    """The node of a rank."""
    template = make_template(1) if task.is_independent else task.template
    role = template.nodes[0 if task.is_independent else rank]
    return NodeIdentity(
        task,
        rank,
        host,
        task.template.nodes[rank],
        template,
        role,
        is_active=role.rank in template.feed_ranks,
        is_chief=role.rank == template.chief_rank,
        is_evaluator=role.job_name == "evaluator",
        is_auxiliary=role.rank in template.auxiliary_ranks,
        gives_example=role.rank == template.feed_ranks[0],
    )


class NodeInfo(Struct, frozen=True):
    """A node's address, versions and process."""

    rank: int
    label: str
    host: str
    port: int
    versions: dict[str, str]
    pid: int
    feed: str | None = None  # where feed tasks connect, if the node is fed

    @property
    def address(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def local_versions() -> dict[str, str]:
    """Versions of Python and of the packages that must be the same on all nodes; read without importing them."""
    path = [p for p in sys.path if not p.endswith(".zip")]  # Spark's archives, which take half a second to search
    distribution = next(iter(importlib.metadata.distributions(name="tensorflow", path=path)), None)
    tensorflow = "unknown" if distribution is None else distribution.version  # on the path, but not installed
    return {"python": platform.python_version(), "tensorflow": tensorflow, "tfos_ml": __version__}


def read_infos(messages: list[str]) -> list[NodeInfo]:
    """Decode the nodes' infos, by rank; raises ``VersionMismatchError``, which names the packages that differ."""
    infos = sorted((decode_text(NodeInfo, message) for message in messages), key=lambda info: info.rank)
    for package in infos[0].versions:
        by_node = {f"{c.label} on {c.host}": c.versions.get(package) for c in infos}
        if len(set(by_node.values())) > 1:
            raise VersionMismatchError(
                f"The nodes run different versions of {package}: {by_node}. Install the same one on every host."
            )
    return infos
