"""A fit: runs a cluster, and repeats the run after failures that may be temporary, until one run has trained."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.common.sessions import is_connect, is_local
from tfos_ml.driver.attempt import Attempt, AttemptFacts, LargerClusterError, RunResult
from tfos_ml.driver.cluster_size import ClusterSize, Position
from tfos_ml.driver.preflight import (
    allocates_dynamically,
    application,
    check_settings,
    fork_owner,
    idle_seconds,
)
from tfos_ml.driver.probe import check_executors
from tfos_ml.driver.restarts import RestartPolicy
from tfos_ml.protocol.addresses import node_ports
from tfos_ml.protocol.node_task import NodeTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tfos_ml.protocol.cluster_template import ClusterTemplate

logger = logging.getLogger(__name__)


def launch(
    spark: SparkSession,
    rows: Callable[[ClusterTemplate], DataFrame],
    task: NodeTask,
    *,
    templates: Callable[[int], ClusterTemplate] | None = None,
    least: int | None = None,
    profile: Any = None,
    max_restarts: int = 0,
    verbose: int = 1,
    reported: Callable[[list[dict[str, Any]]], None] = lambda reports: None,
    driver_program: bytes | None = None,
) -> RunResult:
    """Run a cluster to its end; repeat the run up to `max_restarts` times after failures of its nodes.

    `rows` makes the DataFrame whose partition *i* goes to node *i* of a template, and `templates` the template of so
    many nodes (default: that of the task); both are called for each attempt. An attempt has as many nodes as the
    template of the task. If Spark has too few slots, or lost nodes are not replaced, it has fewer, but at least `least`
    (default: not fewer). `profile` has the CPUs and GPUs of a node, by default those of Spark's tasks. `reported` is
    called with the nodes' reports during the run, if nodes can reach the driver. `driver_program` is the payload for
    nodes of ranks below ``task.first_rank``, which run on the driver's host.

    Raises ``NotEnoughSlotsError`` before an attempt that has too few slots, ``ClusterConfigError`` before any job
    starts, ``NodeError`` for the first failure, and ``EmptyDataError`` if no row reached any node.
    """
    began = time.monotonic()
    check_settings(spark)
    task = _of_session(task, spark, verbose)
    tasks = task.template.size - task.first_rank
    least = tasks if least is None else least - task.first_rank
    size = ClusterSize(spark, tasks, least, task.reservation_timeout, profile)
    policy = RestartPolicy(max_restarts, task.reservation_timeout, is_elastic=size.is_elastic)
    tasks = size.next(None)
    check_executors(spark, tasks)
    checked = time.monotonic() - began
    attempts: list[AttemptFacts] = []
    shown: dict[Any, int] = {}
    lost: errors.TfosMlError | None = None  # how the previous attempt has ended
    while True:
        attempt, began = None, time.monotonic()
        try:
            if lost is not None:
                tasks = size.next(lost)
                _tell_lost(size, tasks, lost, attempts[-1].saved)
            settings = replace(task.settings, restart_count=len(attempts))
            template = templates(tasks + task.first_rank) if templates else task.template
            once = replace(task, template=template, run_id=uuid.uuid4().hex[:12], settings=settings)
            attempt = Attempt(spark, once, profile, reported, size, shown)
            result = attempt.run(rows(template), driver_program)
            facts = AttemptFacts(template.size, attempt.saved, "", time.monotonic() - began)
            return replace(result, template=template, attempts=(*attempts, facts), check_seconds=checked)
        except LargerClusterError as larger:
            nodes, why, lost = tasks, str(larger), None
            tasks = size.grow(larger.size)
            where = attempt.saved if attempt is not None else ""
            logger.warning("Going on with %d of %d nodes from %s, because %s", tasks, size.most, where, larger)
        except errors.TfosMlError as error:
            has_progressed = attempt is not None and attempt.has_progressed
            decision = policy.decide(error, has_progressed, size.can_start_smaller(error))
            if not decision.restart:
                raise _told_with_cause(error, lost) from error.__cause__ or lost
            if decision.notice:
                logger.warning("%s", decision.notice)
            nodes, why, lost = tasks, f"{type(error).__name__}: {_first_line(error)}", error
        before = attempts[-1].saved if attempts else None
        saved = (attempt.saved if attempt is not None else None) or before
        attempts.append(AttemptFacts(nodes + task.first_rank, saved, why, time.monotonic() - began))


def _of_session(task: NodeTask, spark: SparkSession, verbose: int) -> NodeTask:
    """The task of a run in a session."""
    return replace(
        task,
        barrier=not allocates_dynamically(spark) and not task.first_rank,
        node_ports=node_ports(spark),
        shares_console=not is_connect(spark) and is_local(spark),
        verbose=verbose,
        idle_seconds=idle_seconds(spark),
        fork_owner=fork_owner(spark),
        application=application(spark),
        is_driver_far=is_connect(spark),
    )


def _tell_lost(size: ClusterSize, tasks: int, lost: errors.TfosMlError, saved: Position | None) -> None:
    """Log why an elastic fit goes on, and with how many nodes."""
    if size.is_elastic:
        where = "the beginning" if saved is None else str(saved)
        logger.warning("%s; going on with %d of %d nodes from %s", _first_line(lost), tasks, size.most, where)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _told_with_cause(error: errors.TfosMlError, lost: errors.TfosMlError | None) -> errors.TfosMlError:
    """An error that kept nodes from starting also says how the previous attempt ended."""
    if lost is None or not isinstance(error, errors.NotEnoughSlotsError | errors.ReservationTimeoutError):
        return error
    return type(error)(f"The fit cannot be repeated after {type(lost).__name__} ({_first_line(lost)}): {error}")
