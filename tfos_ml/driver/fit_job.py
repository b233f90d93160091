"""A fit: runs a cluster, and repeats the run after failures that may be temporary, until one run has trained."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.driver.attempt import Attempt, AttemptFacts, LargerClusterError, RunResult
from tfos_ml.driver.cluster_size import ClusterSize
from tfos_ml.driver.executor_check import check_executors
from tfos_ml.driver.fit_reports import FitReports, Receiver
from tfos_ml.driver.preflight import check_settings
from tfos_ml.driver.progress import Progress
from tfos_ml.driver.restarts import RestartPolicy
from tfos_ml.driver.session_facts import SessionFacts
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.training_position import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tfos_ml.protocol.cluster_template import ClusterTemplate

logger = logging.getLogger(__name__)


def launch(
    spark: SparkSession,
    facts: SessionFacts,
    rows: Callable[[ClusterTemplate], DataFrame],
    task: NodeTask,
    *,
    templates: Callable[[int], ClusterTemplate] | None = None,
    min_nodes: int | None = None,
    profile: Any = None,
    max_restarts: int = 0,
    verbose: int = 1,
    reported: Sequence[Receiver] = (),
    driver_program: bytes | None = None,
) -> RunResult:
    """Run a cluster to its end; repeat the run up to `max_restarts` times after failures of its nodes.

    `facts` are those of the session. `rows` makes the DataFrame whose partition *i* goes to node *i* of a template, and
    `templates` the template of so many nodes (default: that of the task); both are called for each attempt. An attempt
    has as many nodes as the template of the task. If Spark has too few slots, or lost nodes are not replaced, it has
    fewer, but at least `min_nodes` (default: not fewer). `profile` has the CPUs and GPUs of a node, by default those of
    Spark's tasks. All of `reported` are called with the nodes' reports, during the run if it is connected.
    `driver_program` is the payload for nodes of ranks below ``task.driver_nodes``, which run on the driver's host.

    Raises ``NotEnoughSlotsError`` before an attempt that has too few slots, ``ClusterConfigError`` before any job
    starts, ``NodeError`` for the first failure, and ``EmptyDataError`` if no row reached any node.
    """
    began = time.monotonic()
    check_settings(spark, uses_grpc=task.uses_grpc)
    task = _of_session(task, facts, verbose)
    max_tasks = task.template.size - task.driver_nodes
    min_tasks = max_tasks if min_nodes is None else min_nodes - task.driver_nodes
    size = ClusterSize(spark, max_tasks, min_tasks, task.reservation_timeout, profile)
    tasks = size.next(None)
    check_executors(spark, tasks)
    checked = time.monotonic() - began
    progress = Progress(verbose, task.settings.epochs, facts.draws_stages)
    reports = FitReports([progress.show, *reported])
    policy = RestartPolicy(max_restarts, task.reservation_timeout, is_elastic=size.is_elastic)

    def begin(tasks: int, number: int) -> tuple[Attempt, DataFrame]:
        template = templates(tasks + task.driver_nodes) if templates else task.template
        settings = replace(task.settings, restart_count=number, ends_when_preempted=policy.goes_on_after_preemption)
        once = replace(task, template=template, run_id=uuid.uuid4().hex[:12], settings=settings)
        df = rows(template)
        return Attempt(spark, facts, once, profile, size, progress, reports), df

    with progress:
        result = _Attempts(begin, size, policy).run(tasks, driver_program)
        chief = next(report for report in result.reports if report["chief"])
        progress.show_end(chief.get("restored_epoch"))
    return replace(result, check_seconds=checked)


class _Attempts:
    """The attempts of one fit; ``begin(tasks, number)`` makes one, and the DataFrame of its rows."""

    def __init__(
        self, begin: Callable[[int, int], tuple[Attempt, DataFrame]], size: ClusterSize, policy: RestartPolicy
    ):
        self._begin, self._size, self._policy = begin, size, policy
        self._ended: list[AttemptFacts] = []
        self._lost: errors.TfosMlError | None = None  # how the last one has ended, if it has failed
        self._position: Position | None = None  # how far that one was

    def run(self, tasks: int, driver_program: bytes | None) -> RunResult:
        """Begin with so many tasks, and go on until an attempt has trained to the end; raises the last failure."""
        while True:
            attempt, began = None, time.monotonic()
            try:
                if self._lost is not None:
                    tasks = self._size.next(self._lost)
                    self._log_lost(tasks, self._lost)
                attempt, rows = self._begin(tasks, len(self._ended))
                result = attempt.run(rows, driver_program)
                last = AttemptFacts(attempt.template.size, attempt.saved, "", time.monotonic() - began)
                return replace(result, template=attempt.template, attempts=(*self._ended, last))
            except LargerClusterError as larger:
                assert attempt is not None
                why, self._lost = str(larger), None
                tasks = self._size.grow(larger.size)
                where = attempt.saved
                logger.warning(
                    "Going on with %d of %d nodes from %s, because %s", tasks, self._size.max_tasks, where, why
                )
            except errors.TfosMlError as error:
                self._decide(error, attempt)
                why, self._lost = f"{type(error).__name__}: {_first_line(error)}", error
            nodes = tasks if attempt is None else attempt.template.size
            self._position = None if attempt is None else attempt.trained
            saved = (attempt.saved if attempt is not None else None) or self._saved
            self._ended.append(AttemptFacts(nodes, saved, why, time.monotonic() - began))

    @property
    def _saved(self) -> Position | None:
        return self._ended[-1].saved if self._ended else None

    def _decide(self, error: errors.TfosMlError, attempt: Attempt | None) -> None:
        """Raise the failure of an attempt if none is to follow."""
        has_progressed = attempt is not None and attempt.has_progressed
        decision = self._policy.decide(error, has_progressed, self._size.can_start_smaller(error))
        if not decision.restart:
            raise _with_cause(error, self._lost) from error.__cause__ or self._lost
        if decision.notice:
            logger.warning("%s", decision.notice)

    def _log_lost(self, tasks: int, lost: errors.TfosMlError) -> None:
        """Log why an elastic fit goes on, and with how many nodes."""
        if not self._size.is_elastic:
            return
        known = [position for position in (self._position, self._saved) if position is not None]
        at = f" It was lost at {max(known)} or later." if known else ""
        where = self._saved or "the beginning"
        logger.warning(
            "%s%s Going on with %d of %d nodes from %s", _sentence(lost), at, tasks, self._size.max_tasks, where
        )


def _of_session(task: NodeTask, facts: SessionFacts, verbose: int) -> NodeTask:
    """The task of a run in a session."""
    return replace(
        task,
        barrier=not facts.is_dynamic and not task.driver_nodes,
        node_ports=facts.node_ports,
        shares_console=facts.is_local,
        verbose=verbose,
        idle_seconds=facts.idle_seconds,
        fork_owner=facts.fork_owner,
        is_connect_client=facts.is_connect,
    )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _sentence(error: BaseException) -> str:
    return _first_line(error).rstrip(".") + "."


def _with_cause(error: errors.TfosMlError, lost: errors.TfosMlError | None) -> errors.TfosMlError:
    """An error that kept nodes from starting also says how the previous attempt ended."""
    if lost is None or not isinstance(error, errors.NotEnoughSlotsError | errors.ReservationTimeoutError):
        return error
    return type(error)(f"The fit cannot be repeated after {type(lost).__name__} ({_first_line(lost)}): {error}")
