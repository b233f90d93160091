"""Logs ``CrossValidator``, ``TrainValidationSplit`` and ``OptunaSearch`` to one run, with a child run for each fit.

A search fits in its own threads, in which no MLflow run is active. So the parent run is set as an attribute of the
estimators that the search copies and fits. For this, ``_fit`` of the search is replaced while ``autolog`` is on.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.utils.autologging_utils import autologging_is_disabled

from tfos_ml.common.redact import redact
from tfos_ml.mlflow import patching, run_facts, tracking_server
from tfos_ml.mlflow.run_choice import NOBODY, Parent, Runs
from tfos_ml.stages.cluster_estimator import cluster_estimators

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _searches() -> list[Any]:
    from pyspark.ml.tuning import CrossValidator, TrainValidationSplit

    from tfos_ml.tuning import OptunaSearch

    return [CrossValidator, TrainValidationSplit, OptunaSearch]


def follow_searches(runs: Runs) -> None:
    """From now on, log searches over estimators of tfos_ml."""
    for search in _searches():
        patching.replace_fit(search, functools.partial(_followed, runs))


def leave_searches() -> None:
    """Undo :func:`follow_searches`."""
    for search in _searches():
        patching.restore_fit(search)


def _followed(runs: Runs, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fit(self: Any, dataset: DataFrame) -> Any:
        if not list(cluster_estimators(self.getEstimator())):
            return original(self, dataset)
        with _search_run(runs) as parent:
            searching = self.copy()
            _adopt(searching, parent)
            tell = (
                _Candidates(runs, searching)
                if parent is not NOBODY and hasattr(self, "getEstimatorParamMaps")
                else None
            )
            is_logged = parent is not NOBODY and not _spark_logs_it()
            if is_logged:
                _attempt("cannot log the Params of the search", lambda: _log_search(MlflowClient(), parent, searching))
            try:
                with tell or nullcontext():
                    model = original(searching, dataset)
            finally:
                _adopt(searching, None)  # because the model keeps the estimators
            if is_logged:
                log_best = functools.partial(_log_best, MlflowClient(), parent, searching, model)
                _attempt("cannot log the result of the search", log_best)
            return model

    return fit


class _Candidates(AbstractContextManager[None]):
    """Within it, the runs of a search over a grid get their fold, the number of their param map, and their metric.

    Spark calls ``fitMultiple`` of the estimator for each fold, and in the thread of each fit then the evaluator. Both
    are replaced on the objects of the search, a copy.
    """

    def __init__(self, runs: Runs, search: Any):
        self._runs = runs
        self._estimator, self._evaluator = search.getEstimator(), search.getEvaluator()
        self._has_folds = hasattr(search, "getNumFolds")
        self._folds = count()
        self._fit_multiple, self._evaluate = self._estimator.fitMultiple, self._evaluator.evaluate
        self._metric = run_facts.metric_name(f"search/{_metric_of(self._evaluator)}")
        self._fitted = threading.local()

    def __enter__(self) -> None:
        self._estimator.fitMultiple, self._evaluator.evaluate = self.fit_multiple, self.evaluate

    def __exit__(self, *_: object) -> None:
        del self._estimator.fitMultiple, self._evaluator.evaluate

    def fit_multiple(self, dataset: DataFrame, params: Any) -> Iterator[tuple[int, Any]]:
        """``fitMultiple`` of the estimator. Several threads may take the models: ``map`` has no state of its own."""
        return map(functools.partial(self.log_candidate, next(self._folds)), self._fit_multiple(dataset, params))

    def log_candidate(self, fold: int, indexed: tuple[int, Any]) -> tuple[int, Any]:
        """Log the fold and the param map of a model that this thread has just fitted."""
        run = self._fitted.run = self._runs.take_opened()
        if run is not None:
            facts = {"candidate": indexed[0], **({"fold": fold} if self._has_folds else {})}
            params = [Param(name, str(value)) for name, value in facts.items()]
            _attempt("cannot log the fold", lambda: MlflowClient(run.tracking_uri).log_batch(run.run_id, params=params))
        return indexed

    def evaluate(self, dataset: DataFrame, params: Any = None) -> float:
        """``evaluate`` of the evaluator."""
        value: float = self._evaluate(dataset, params)
        run = getattr(self._fitted, "run", None)
        if run is not None:
            metric = Metric(self._metric, value, int(time.time() * 1000), 0)
            client = MlflowClient(run.tracking_uri)
            _attempt("cannot log the metric of a fold", lambda: client.log_batch(run.run_id, metrics=[metric]))
        return value


def _adopt(search: Any, parent: Parent | None) -> None:
    """Set the parent run of all fits of a search."""
    for estimator in cluster_estimators(search.getEstimator()):
        estimator._parent_run = parent


def _spark_logs_it() -> bool:
    """Whether ``mlflow.pyspark.ml.autolog`` is on, which also logs Params and results of searches."""
    return not autologging_is_disabled("pyspark.ml")  # type: ignore[no-untyped-call]


@contextmanager
def _search_run(runs: Runs) -> Iterator[Parent]:
    """The active run, or a new one that ends with the search."""
    active = runs.active_parent()
    if active is not None:
        yield active
        return
    begun: list[Any] = []
    if not _attempt("cannot start a run for the search", lambda: begun.append(mlflow.start_run())):
        yield NOBODY
        return
    status = "KILLED"
    try:
        yield Parent(begun[0].info.run_id, begun[0].info.experiment_id)
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        if not _attempt("cannot end the run of the search", lambda: mlflow.end_run(status)):
            with tracking_server.impatient(), suppress(Exception):
                mlflow.end_run(status)


def _attempt(what: str, action: Callable[[], Any]) -> bool:
    """Call `action`; returns whether it worked. If not, a warning is logged."""
    return tracking_server.attempt(action, f"{what}: %s. The search continues.")


def _log_search(client: MlflowClient, parent: Parent, search: Any) -> None:
    known = client.get_run(parent.run_id).data.params
    params = {p.name: search.getOrDefault(p) for p in search.params if search.isDefined(p)}
    plain = {name: redact(v, mark="") for name, v in params.items() if isinstance(v, (bool, int, float, str))}
    plain["estimator"] = type(search.getEstimator()).__name__
    if search.getEvaluator() is not None:
        plain["evaluator"] = type(search.getEvaluator()).__name__
    points = [run_facts.grid_point(point) for point in getattr(search, "getEstimatorParamMaps", list)()]
    if points:
        plain["paramMaps"] = str(len(points))
    tags = run_facts.class_tags(search)
    client.log_batch(
        parent.run_id,
        params=[Param(name, value) for name, value in plain.items() if name not in known],
        tags=[RunTag(name, value) for name, value in tags.items()],
    )
    if points:
        client.log_dict(parent.run_id, {"paramMaps": points}, "param_maps.json")


def _log_best(client: MlflowClient, parent: Parent, search: Any, model: Any) -> None:
    """Log the metric of each param map or trial (step = its number), and the best."""
    if hasattr(model, "trials"):
        metric, best = model.study["metric"], model.study["best_params"]
        values = {trial["number"]: trial["value"] for trial in model.trials if trial["state"] == "COMPLETE"}
        client.log_dict(parent.run_id, {"study": model.study, "trials": model.trials}, "trials.json")
    else:
        metric, values, best = _of_grid(search, model)
    name = run_facts.metric_name(f"search/{metric}")
    now = int(time.time() * 1000)
    known = client.get_run(parent.run_id).data.params
    client.log_batch(
        parent.run_id,
        metrics=[Metric(name, float(value), now, step) for step, value in values.items()],
        params=[Param(f"best_{n}", str(v)) for n, v in best.items() if f"best_{n}" not in known],
    )


def _of_grid(search: Any, model: Any) -> tuple[str, dict[int, float], dict[str, str]]:
    """The metric of a search over a grid, its value for each param map, and the best param map."""
    evaluator = search.getEvaluator()
    values = model.avgMetrics if hasattr(model, "avgMetrics") else model.validationMetrics
    best = max if evaluator.isLargerBetter() else min
    point = run_facts.grid_point(search.getEstimatorParamMaps()[values.index(best(values))])
    return _metric_of(evaluator), dict(enumerate(values)), point


def _metric_of(evaluator: Any) -> str:
    return evaluator.getMetricName() if hasattr(evaluator, "getMetricName") else "metric"
