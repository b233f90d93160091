"""Roles of the nodes of a cluster: pure functions from sizes to ``TF_CONFIG``.

Node *i* of a template is task *i* of the barrier stage. The order of roles is that of
TensorFlowOnSpark: parameter servers, chief, evaluator, workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tfos_ml.errors import ParamError

CHIEF_NAMES = ("chief", "master")


@dataclass(frozen=True)
class NodeRole:
    """One node: its rank in the cluster, its TensorFlow job name and index there."""

    rank: int
    job_name: str
    task_index: int

    @property
    def label(self) -> str:
        """``"worker:1"``, as TensorFlow writes a task."""
        return f"{self.job_name}:{self.task_index}"


@dataclass(frozen=True)
class ClusterTemplate:
    """The roles of a cluster, by rank."""

    nodes: tuple[NodeRole, ...]

    @property
    def size(self) -> int:
        return len(self.nodes)

    @cached_property
    def chief_rank(self) -> int:
        """Rank of the chief; without a chief role, of worker 0."""
        named = [n.rank for n in self.nodes if n.job_name in CHIEF_NAMES]
        return named[0] if named else self._ranks("worker")[0]

    @cached_property
    def evaluator_rank(self) -> int | None:
        return next(iter(self._ranks("evaluator")), None)

    @cached_property
    def feed_ranks(self) -> tuple[int, ...]:
        """Ranks that run the training program and so receive the training rows.

        The chief and the workers; but only the chief where there are parameter servers
        too, since TensorFlow's ``ClusterCoordinator`` then runs the whole program there
        and the workers only serve it.
        """
        has_chief = self.nodes[self.chief_rank].job_name in CHIEF_NAMES
        if has_chief and self._ranks("ps"):
            return (self.chief_rank,)
        return tuple(n.rank for n in self.nodes if n.job_name in (*CHIEF_NAMES, "worker"))

    @cached_property
    def auxiliary_ranks(self) -> tuple[int, ...]:
        """Ranks of the workers beside a chief and parameter servers: they serve it, or work by themselves."""
        return tuple(rank for rank in self._ranks("worker") if rank not in self.feed_ranks)

    @cached_property
    def validation_ranks(self) -> tuple[int, ...]:
        """Ranks that receive the validation rows: the evaluator, else those of training."""
        return self.feed_ranks if self.evaluator_rank is None else (self.evaluator_rank,)

    def _ranks(self, job_name: str) -> tuple[int, ...]:
        return tuple(n.rank for n in self.nodes if n.job_name == job_name)


def make_template(
    cluster_size: int, num_ps: int = 0, master_node: str | None = None, eval_node: bool = False
) -> ClusterTemplate:
    """Deal out the roles of a cluster of so many nodes, all in all; without a `master_node` worker 0 is chief.

    Raises ``ParamError`` if a number is out of range, or no worker and no chief is left.

    >>> [node.label for node in make_template(4, num_ps=1, master_node="chief").nodes]
    ['ps:0', 'chief:0', 'worker:0', 'worker:1']
    """
    if cluster_size < 1:
        raise ParamError(f"clusterSize must be at least 1. Received: {cluster_size}")
    if num_ps < 0:
        raise ParamError(f"numPS must be at least 0. Received: {num_ps}")
    if master_node is not None and master_node not in CHIEF_NAMES:
        raise ParamError(f"masterNode must be one of {CHIEF_NAMES} or unset. Received: {master_node!r}")
    jobs = ["ps"] * num_ps
    jobs += [master_node] if master_node else []
    jobs += ["evaluator"] if eval_node else []
    workers = cluster_size - len(jobs)
    if workers < 0 or (workers == 0 and master_node is None):
        raise ParamError(
            f"clusterSize={cluster_size} leaves no worker: numPS={num_ps}, masterNode={master_node!r} and "
            f"evalNode={eval_node} take {len(jobs)} nodes. Set clusterSize to at least "
            f"{len(jobs) + (0 if master_node else 1)}."
        )
    jobs += ["worker"] * workers
    return ClusterTemplate(tuple(NodeRole(rank, job, rank - jobs.index(job)) for rank, job in enumerate(jobs)))


def cluster_spec(template: ClusterTemplate, addresses: Sequence[str]) -> dict[str, list[str]]:
    """``{job name: [host:port, ...]}`` of all nodes, given the addresses by rank."""
    spec: dict[str, list[str]] = {}
    for node in template.nodes:
        spec.setdefault(node.job_name, []).append(addresses[node.rank])
    return spec


def tf_config(template: ClusterTemplate, rank: int, addresses: Sequence[str]) -> dict[str, object]:
    """Content of the ``TF_CONFIG`` environment variable of one node.

    The evaluator is no member of the training cluster: it sees only itself, and the others
    do not see it (https://www.tensorflow.org/tutorials/distribute/parameter_server_training).
    """
    me = template.nodes[rank]
    spec = cluster_spec(template, addresses)
    evaluator = spec.pop("evaluator", None)
    if me.job_name == "evaluator":
        spec = {"evaluator": evaluator or []}
    return {"cluster": spec, "task": {"type": me.job_name, "index": me.task_index}}
