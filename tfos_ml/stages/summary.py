"""What a fit reports about itself: ``TFModel.summary``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from tfos_ml.driver.learning_curves import charts, svg, timeline_svg
from tfos_ml.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tfos_ml.driver.attempt import RunResult


@dataclasses.dataclass(repr=False)
class TrainingSummary:
    """Numbers of one fit; saved with the model. A notebook shows a table, learning curves, and the times of phases.

    Attributes
    ----------
    history : dict of str to list of float
        Metrics that the chief reported, by name, one value an epoch; the evaluator's with ``eval_`` in front.
    rows, validationRows, skippedRows : int
        Rows that were trained on, validated on, and left out by ``handleInvalid="skip"``.
    seconds : float
        Time of the slowest node.
    nodes : list of dict
        Of each node: address, rows, reports and more.
    steps : int or None
        Training steps; None unless a KerasEstimator trained.
    epochSeconds : list of float
        Seconds of each epoch of a KerasEstimator.
    warnings : list of str
        What a KerasEstimator warned of.
    timeline : dict of str to float
        Seconds of each phase of ``fit``, in order: "checks" (before the job), "snapshot" (with ``cacheDir``), "failed
        attempts" (all but the last), "job" (Spark's scheduling), "process" (the chief's starts), "meeting" (of the
        nodes), "rows" (until the last has arrived), "tracing" (of a Keras model's step by TensorFlow), "training" (the
        rest), "export" and "return". Their sum is the time of ``fit``.
    attempts : list of dict
        The attempts of the fit, in order: how many ``nodes`` it had; its last checkpoint known to the driver, ``epoch``
        (completed) and ``step`` of the next one, or None; why it ``ended``, empty for the last; and its ``seconds``.
    restoredEpoch : int or None
        The epoch, counted from 0, whose weights the model has, if ``EarlyStopping(restore_best_weights=True)`` of a
        KerasEstimator has restored them.
    snapshot : dict or None
        With ``cacheDir``: how many rows the snapshot has, when and by which application it was written, and whether by
        this fit (``is_new``).

    Examples
    --------
    >>> model.summary.history["loss"][-1], model.summary.rows                  # doctest: +SKIP
    (0.0312, 60000)
    >>> model.summary.plot().savefig("curves.png")                             # doctest: +SKIP
    """

    history: dict[str, list[float]]
    rows: int
    validationRows: int
    skippedRows: int
    seconds: float
    nodes: list[dict[str, Any]]
    steps: int | None = None
    epochSeconds: list[float] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    timeline: dict[str, float] = dataclasses.field(default_factory=dict)
    attempts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    snapshot: dict[str, Any] | None = None
    restoredEpoch: int | None = None

    @classmethod
    def _of_run(cls, result: RunResult, history: dict[str, list[float]]) -> TrainingSummary:
        reports = result.reports
        chief = next(r for r in reports if r["chief"])
        return cls(
            history=history,
            rows=sum(r["rows"] for r in reports),
            validationRows=sum(r["validation_rows"] for r in reports),
            skippedRows=sum(r["skipped_rows"] for r in reports),
            seconds=max(r["seconds"] for r in reports),
            nodes=reports,
            steps=chief.get("steps"),
            epochSeconds=chief.get("epoch_seconds", []),
            warnings=chief.get("warnings", []),
            attempts=[attempt.summary() for attempt in result.attempts],
            restoredEpoch=chief.get("restored_epoch"),
        )

    @classmethod
    def _from_json(cls, saved: Mapping[str, Any]) -> TrainingSummary:
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in saved.items() if name in names})

    def _table(self) -> dict[str, str]:
        """What a reader sees first, by name; metrics are those of the epoch whose weights the model has."""
        epochs = max(map(len, self.history.values()), default=0)
        nodes = ", ".join(str(attempt["nodes"]) for attempt in self.attempts)
        entries = {
            "rows": f"{self.rows:,}",
            "validationRows": f"{self.validationRows:,}" if self.validationRows else "",
            "skippedRows": f"{self.skippedRows:,}" if self.skippedRows else "",
            "seconds": f"{self.seconds:.1f}",
            "nodes": str(len(self.nodes)),
            "attempts": f"{len(self.attempts)}, of {nodes} nodes" if len(self.attempts) > 1 else "",
            "epochs": str(epochs),
            "steps": "" if self.steps is None else f"{self.steps:,}",
            "restoredEpoch": ""
            if self.restoredEpoch in (None, epochs - 1)
            else f"{self.restoredEpoch + 1} of {epochs}",
            **{name: f"{self._of_model(values):.4g}" for name, values in self.history.items() if values},
            "warnings": str(len(self.warnings)) if self.warnings else "",
        }
        return {name: text for name, text in entries.items() if text}

    def _of_model(self, values: list[float]) -> float:
        return values[-1 if self.restoredEpoch is None or self.restoredEpoch >= len(values) else self.restoredEpoch]

    def __repr__(self) -> str:
        return f"TrainingSummary({', '.join(f'{name}={text}' for name, text in self._table().items())})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self._table().items())
        warnings = "".join(f"<li>{escape(text)}</li>" for text in self.warnings)
        notes = f"<ul>{warnings}</ul>" if warnings else ""
        return f"<table>{rows}</table>{notes}<div>{svg(self.history)}</div><div>{timeline_svg(self.timeline)}</div>"

    def plot(self) -> Figure:
        """Draw the learning curves with matplotlib, one chart a metric, training beside validation.

        Returns
        -------
        matplotlib.figure.Figure
            A figure that no window shows; a notebook displays it.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.

        Examples
        --------
        >>> model.summary.plot().savefig("curves.png")                         # doctest: +SKIP
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                "summary.plot() needs matplotlib, which is not installed here. Run: pip install matplotlib.",
                name="matplotlib",
            ) from error
        grouped = charts(self.history)
        figure = Figure(figsize=(4 * max(1, len(grouped)), 3), layout="constrained")
        for place, (metric, series) in enumerate(grouped.items()):
            axes = figure.add_subplot(1, len(grouped), place + 1, title=metric, xlabel="epoch")
            for name, values in series.items():
                axes.plot(range(1, len(values) + 1), values, marker=".", label=name)
            axes.legend()
        return figure
