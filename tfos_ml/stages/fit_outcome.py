"""Evaluates a successful fit: its history, and warnings about results that its author may not expect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfos_ml.common.user_warnings import warn
from tfos_ml.errors import IndependentWorkersWarning, NothingExportedWarning
from tfos_ml.protocol.grace_periods import warn_of_ended
from tfos_ml.worker.outcome import RETURNED

if TYPE_CHECKING:
    from tfos_ml.driver.attempt import RunResult
    from tfos_ml.protocol.cluster_template import ClusterTemplate


def history_of(reports: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Metrics of the chief and the evaluator by name: the last value of each epoch.

    Reports without an epoch count one by one.
    """
    history: dict[str, dict[int, float]] = {}
    for node in reports:
        if not (node["chief"] or node["evaluator"]):
            continue
        for report in node["metrics"]:
            for name, value in report["metrics"].items():
                series = history.setdefault(f"eval_{name}" if node["evaluator"] else name, {})
                series[len(series) if report["epoch"] is None else report["epoch"]] = value
    return {name: [series[epoch] for epoch in sorted(series)] for name, series in history.items()}


def timeline_of(driver: dict[str, float], result: RunResult) -> dict[str, float]:
    """The seconds of the phases of a fit, in order; they add up to its total time.

    `driver` has the times measured by the driver: "checks", "snapshot" if there is one, "run", "model".
    """
    chief = next(r for r in result.reports if r["chief"])
    node: dict[str, float] = chief["timeline"]
    export = min(chief.get("export_seconds", 0.0), node["training"])
    tracing = min(chief.get("tracing_seconds", 0.0), node["training"] - export)
    around_job = driver["run"] - result.check_seconds - result.job_seconds
    phases = {
        "checks": driver["checks"] + result.check_seconds,
        **({"snapshot": driver["snapshot"]} if "snapshot" in driver else {}),
        **({"failed attempts": around_job} if result.restarts else {}),
        "job": result.job_seconds - sum(node.values()),  # Spark's scheduling, and the way of the results
        **{phase: spent for phase, spent in node.items() if phase not in ("rows", "training")},
        "rows": node["rows"],
        **({"tracing": tracing} if tracing else {}),
        "training": node["training"] - export - tracing,
        "export": export,
        "return": driver["model"] + (0.0 if result.restarts else around_job),
    }
    return {phase: round(max(0.0, spent), 3) for phase, spent in phases.items()}


def warn_of_outcome(result: RunResult, template: ClusterTemplate) -> None:
    """Warn of nodes that were ended at work, skipped rows, workers apart, and a chief that exported nothing."""
    warn_of_ended(result.reports)
    for problem in filter(None, (report.get("log_problem") for report in result.reports)):
        warn(problem)
    if skipped := sum(report["skipped_rows"] for report in result.reports):
        total = skipped + sum(report["rows"] + report["validation_rows"] for report in result.reports)
        warn(f"handleInvalid='skip' left out {skipped:,} of {total:,} rows (summary.skippedRows).")
    chief = result.reports[template.chief_rank]
    if result.model is not None or chief.get("staged"):
        problem = independence(result.reports, template)
        if problem:
            warn(problem, IndependentWorkersWarning)
    elif not result.results:
        warn(missing_export(chief), NothingExportedWarning)


def independence(reports: list[dict[str, Any]], template: ClusterTemplate) -> str | None:
    """A warning about workers that only shared the rows; None if that is not certain."""
    chief = reports[template.chief_rank]
    workers = [reports[rank] for rank in template.feed_ranks]
    rows = sum(worker["rows"] for worker in workers)
    is_alone = len(workers) == 1 or (rows > 0 and chief["rows"] == rows)
    if is_alone or not chief.get("reads") or chief.get("coordinates", True):
        return None
    share = f"{chief['rows']} of {rows} rows" if rows else "its own share of the files"
    return (
        f"fit returns the model of {chief['label']} alone, which was trained on {share}: the {len(workers)} workers "
        "shared the data, but used no tf.distribute strategy, collective operation or parameter server. Use "
        "KerasEstimator, which trains one Keras model on all workers; or train under "
        "tf.distribute.MultiWorkerMirroredStrategy in the train function; or set clusterSize=1."
    )


def missing_export(chief: dict[str, Any]) -> str:
    """A warning about a chief that exported nothing."""
    ending = chief.get("ending", RETURNED)
    how = "" if ending == RETURNED else f" ({ending})"
    return (
        f"The train function exported no model on {chief['label']}{how}, so what fit returns cannot transform. "
        "Call ctx.export_saved_model(model) at its end, on every node."
    )
