"""Bugs that are put into the package: the simulation finds each in few schedules, and names a seed that replays it."""

import re
import warnings

import pytest
from clusters import Cluster
from fences import Attempts
from fits import Fit
from played import Violation
from schedule import drawn
from simulated_spark import Job as SparkJob
from substrate import simulated

from tfos_ml import errors
from tfos_ml.agent.node_result import NodeResult
from tfos_ml.agent.progress_link import ProgressLink
from tfos_ml.agent.supervisor import Supervisor
from tfos_ml.driver.attempt import Attempt
from tfos_ml.driver.liveness import Liveness
from tfos_ml.driver.node_exchanges import AllGather
from tfos_ml.driver.nodes import Nodes
from tfos_ml.driver.partitions import Partitions
from tfos_ml.keras.checkpoint.fence import Fence
from tfos_ml.protocol.results import REPORTS

WITHIN = 500  # schedules
PLANTED = {}


def planted(kind, text):
    """Add a bug, which a kind of schedules shows by a violation with a text."""

    def add(plant):
        PLANTED[plant.__name__] = plant, kind, text
        return plant

    return add


@planted(Cluster, "read twice|other rows|not typed|never read")
def a_grant_ends_with_its_commit(patch):
    commit = Partitions.commit

    def forgetful(self, number, partition, claimant, rows):
        commit(self, number, partition, claimant, rows)
        self._of(number).pop(partition, None)

    patch.setattr(Partitions, "commit", forgetful)


@planted(Cluster, "processes are left|has not ended")
def an_end_that_nobody_is_told_of(patch):
    def once(self, heard):
        news = [] if heard is None else list(self._announcements)
        self._announcements.clear()
        return news

    patch.setattr(Nodes, "_news", once)


@planted(Fit, "published")
def attempts_publish_as_soon_as_they_have_staged(patch):
    publish = Attempt._publish
    patch.setattr(Attempt, "_discard", lambda self: publish(self, _AnyResult()))


class _AnyResult:
    reports = ({"staged": True},)


@planted(Fit, "is blamed")
def collateral_failures_count_at_once(patch):
    patch.setattr(Liveness, "is_cause", lambda self, rank, broken, ranks: True)


@planted(Fit, "preempted for an executor of others")
def any_executor_that_leaves_preempts(patch):
    patch.setattr(SparkJob, "executors", lambda job: {executor.host for executor in job._spark.executors})


@planted(Fit, "believes|reports of")
def a_lost_report_counts_as_delivered(patch):
    ping = ProgressLink._ping

    def hopeful(self):
        waiting = list(self._outbox.batches())
        is_answered = ping(self)
        for batch in waiting:
            self._outbox.confirm(batch)
        return is_answered

    patch.setattr(ProgressLink, "_ping", hopeful)


@planted(Fit, "reports of")
def a_repeated_report_counts_again(patch):
    take = Nodes.take

    def credulous(self, rank, reports):
        self._taken.clear()
        take(self, rank, reports)

    patch.setattr(Nodes, "take", credulous)


@planted(Fit, "in the result")
def what_a_node_has_left_does_not_come_with_its_results(patch):
    rows = NodeResult.rows

    def careless(self, *args):
        return (batch for batch in rows(self, *args) if batch.column("kind")[0].as_py() != REPORTS)

    patch.setattr(NodeResult, "rows", careless)


@planted(Fit, "has not ended|no fault, and an error")
def a_round_is_forgotten_when_it_is_complete(patch):
    gather = AllGather._gather

    def forgetful(self, call):
        answer = gather(self, call)
        if answer is not None:
            self._rounds.pop(call.round, None)
        return answer

    patch.setattr(AllGather, "_gather", forgetful)


@planted(Fit, "not typed|has crashed")
def an_error_without_a_type(patch):
    lead = Supervisor.lead

    def careless(self, batches):
        yield from lead(self, batches)
        raise ValueError("oops")

    patch.setattr(Supervisor, "lead", careless)


@planted(Attempts, "two lines of training")
def what_an_earlier_attempt_writes_late_counts(patch):
    patch.setattr(Fence, "counts", lambda self, checkpoint: True)


OFTEN = {  # soon found, and each of another kind
    "a_grant_ends_with_its_commit",
    "attempts_publish_as_soon_as_they_have_staged",
    "a_repeated_report_counts_again",
    "a_round_is_forgotten_when_it_is_complete",
    "an_error_without_a_type",
    "what_an_earlier_attempt_writes_late_counts",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.chaos] * (n not in OFTEN)) for n in PLANTED])
def test_a_planted_fault_is_found(name, monkeypatch, record_property):
    plant, kind, text = PLANTED[name]
    with simulated(), warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.NodeEndedWarning)
        plant(monkeypatch)
        found = next(violation for seed in range(WITHIN) if (violation := violation_of(kind, seed)))
        seed = int(re.match(r"seed (\d+): ", found).group(1))
        record_property("schedules", seed + 1)
        assert re.search(text, found), found
        assert violation_of(kind, seed) == found
        monkeypatch.undo()
        assert violation_of(kind, seed) is None


def violation_of(kind, seed):
    """What does not hold in a schedule, None if all does."""
    try:
        kind(seed if kind is Attempts else drawn(seed)).play()
    except Violation as violation:
        return str(violation)
    return None
