"""The role of a node in its TensorFlow cluster."""

from __future__ import annotations

from dataclasses import dataclass

from tfos_ml.protocol.cluster_template import ClusterTemplate, NodeRole, make_template
from tfos_ml.protocol.node_task import NodeTask


@dataclass(frozen=True)
class NodeIdentity:
    """One node of a run, and its role among the others."""

    task: NodeTask
    rank: int  # in the run
    host: str
    node: NodeRole  # in the run, as failures and lines of output name it
    template: ClusterTemplate  # of its cluster: the run's, or of this node alone where nodes are independent
    role: NodeRole  # in its cluster
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
