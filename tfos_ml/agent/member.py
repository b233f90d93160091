"""The part that a node has in its TensorFlow cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.template import ClusterTemplate, NodeRole, make_template


@dataclass(frozen=True)
class Member:
    """One node of a run.

    The nodes that train are *active*; parameter servers, evaluators and *helpers* (workers beside a chief and parameter
    servers) are passive.

    Attributes
    ----------
    task : NodeTask
        The run.
    rank : int
        The node's rank in the run.
    host : str
        Its address.
    """

    task: NodeTask
    rank: int
    host: str

    @cached_property
    def node(self) -> NodeRole:
        """The node in the run, as failures and lines of output name it."""
        return self.task.template.nodes[self.rank]

    @cached_property
    def template(self) -> ClusterTemplate:
        """The node's cluster: that of the run, or of this node alone where nodes are independent."""
        return make_template(1) if self.task.is_independent else self.task.template

    @cached_property
    def role(self) -> NodeRole:
        """The node in its cluster."""
        return self.template.nodes[0 if self.task.is_independent else self.rank]

    @property
    def is_active(self) -> bool:
        """Whether it trains."""
        return self.role.rank in self.template.feed_ranks

    @property
    def gives_example(self) -> bool:
        """Whether the features of its first rows are the run's example."""
        return self.role.rank == self.template.feed_ranks[0]

    @property
    def is_chief(self) -> bool:
        """Whether it writes what is written once."""
        return self.role.rank == self.template.chief_rank

    @property
    def is_evaluator(self) -> bool:
        """Whether it evaluates only."""
        return self.role.job_name == "evaluator"

    @property
    def is_helper(self) -> bool:
        """Whether it is a worker beside a chief and parameter servers."""
        return self.role.rank in self.template.helper_ranks

    @property
    def is_server(self) -> bool:
        """Whether it serves, or helps, those who train."""
        return not (self.is_active or self.is_evaluator)
