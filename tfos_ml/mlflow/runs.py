"""Which MLflow run a fit belongs to: the active one, a child of it, or a new one."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import Any

import mlflow
from mlflow import MlflowClient

from tfos_ml.mlflow import tracking_server


@dataclass(frozen=True)
class Parent:
    """A run whose children fits are to be, in whatever thread they run.

    In a search, whose fits try Params out, only the last one, made by the thread that searches, is worth keeping.
    """

    run_id: str
    experiment_id: str
    is_search: bool
    thread: int = field(default_factory=threading.get_ident)  # the one that searches


NOBODY = Parent("", "", is_search=True)
"""The parent of fits that are not to be logged."""


@dataclass(frozen=True)
class Run:
    """A run that a fit is logged to."""

    run_id: str
    tracking_uri: str
    is_own: bool  # it was begun for the fit, and ends with it
    keeps_model: bool = True  # the fit's model is to be logged

    def end(self, status: str, *, is_down: bool) -> None:
        """End it, if it is the fit's own; with a single request to a server that is down."""
        if not self.is_own:
            return
        with tracking_server.impatient() if is_down else contextlib.nullcontext():
            active = mlflow.active_run()
            if active is not None and active.info.run_id == self.run_id:
                mlflow.end_run(status)
            else:
                MlflowClient(self.tracking_uri).set_terminated(self.run_id, status)


class Runs:
    """Opens the runs of fits, one each; with `exclusive`, runs that the user has begun are left alone."""

    def __init__(self, exclusive: bool):
        self._exclusive = exclusive
        self._taken: set[str] = set()
        self._lock = threading.Lock()

    def open(self, parent: Parent | None) -> Run | None:
        """The run of a fit that begins in this thread; None if it is not to be logged.

        The active run, if no fit was logged to it yet; else a child of it. Without one, a child
        of `parent`, or a new run.
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
        keeps = parent is None or not parent.is_search or parent.thread == threading.get_ident()
        return Run(run.info.run_id, uri, is_own=True, keeps_model=keeps)

    def _take(self, run_id: str) -> bool:
        """Take a run for a fit; whether it was free."""
        with self._lock:
            is_free = run_id not in self._taken
            self._taken.add(run_id)
            return is_free

    def active_parent(self, is_search: bool) -> Parent | None:
        """The active run as a parent of fits, ``NOBODY`` if it is to be left alone; None if there is none."""
        active = mlflow.active_run()
        if active is None:
            return None
        return NOBODY if self._exclusive else parent_of(active, is_search)


def parent_of(run: Any, is_search: bool) -> Parent:
    """A run as a parent of fits."""
    return Parent(run.info.run_id, run.info.experiment_id, is_search)
