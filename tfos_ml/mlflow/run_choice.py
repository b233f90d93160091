"""Selects the MLflow run of a fit: the active run, a child of it, or a new run."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field

import mlflow
from mlflow import MlflowClient

from tfos_ml.mlflow import tracking_server


@dataclass(frozen=True)
class Parent:
    """The parent run of the fits of a search, which run in other threads.

    They try out Params. Only the model of the last fit, which the searching thread makes, is logged.
    """

    run_id: str
    experiment_id: str
    thread: int = field(default_factory=threading.get_ident)  # the searching thread


NOBODY = Parent("", "")
"""The parent of fits that are not logged."""


@dataclass(frozen=True)
class Run:
    """A run that a fit is logged to."""

    run_id: str
    tracking_uri: str
    is_own: bool  # whether it was started for the fit, and ends with it
    keeps_model: bool = True  # whether to log the model of the fit

    def end(self, status: str, *, is_down: bool) -> None:
        """End a run that was started for the fit. If the server is down, only one request is made."""
        if not self.is_own:
            return
        with tracking_server.impatient() if is_down else contextlib.nullcontext():
            active = mlflow.active_run()
            if active is not None and active.info.run_id == self.run_id:
                mlflow.end_run(status)
            else:
                MlflowClient(self.tracking_uri).set_terminated(self.run_id, status)


class Runs:
    """Opens one run for each fit; with `exclusive`, never within runs that the user has started."""

    def __init__(self, exclusive: bool):
        self._exclusive = exclusive
        self._taken: set[str] = set()
        self._lock = threading.Lock()
        self._opened = threading.local()
        self.of_models: dict[str, Run] = {}  # by the uid of the model that the fit has returned

    def open(self, parent: Parent | None) -> Run | None:
        """:meth:`_open`, and keep it for :meth:`take_opened`."""
        self._opened.run = run = self._open(parent)
        return run

    def take_opened(self) -> Run | None:
        """The run of the last fit in this thread; None if it was taken already."""
        run: Run | None = getattr(self._opened, "run", None)
        self._opened.run = None
        return run

    def _open(self, parent: Parent | None) -> Run | None:
        """Open the run of a fit that begins in this thread; None if the fit is not logged.

        It is the active run if that has no fit yet, or else a child of the active run. Without an active run, it is
        a child of `parent` or a new run.
        """
        uri = mlflow.get_tracking_uri()
        active = mlflow.active_run()
        if active is not None and self._exclusive and parent is None:
            return None
        if active is not None and parent is None and self._take(active.info.run_id):
            return Run(active.info.run_id, uri, is_own=False)
        if active is not None:
            run = mlflow.start_run(nested=True)
        elif parent is not None:
            run = mlflow.start_run(experiment_id=parent.experiment_id, parent_run_id=parent.run_id)
        else:
            run = mlflow.start_run()
        self._take(run.info.run_id)
        keeps = parent is None or parent.thread == threading.get_ident()
        return Run(run.info.run_id, uri, is_own=True, keeps_model=keeps)

    def _take(self, run_id: str) -> bool:
        """Reserve a run for a fit; returns whether it had no fit yet."""
        with self._lock:
            is_free = run_id not in self._taken
            self._taken.add(run_id)
            return is_free

    def active_parent(self) -> Parent | None:
        """The active run as a parent of fits; ``NOBODY`` if `exclusive`; None if there is no active run."""
        active = mlflow.active_run()
        if active is None:
            return None
        return NOBODY if self._exclusive else Parent(active.info.run_id, active.info.experiment_id)
