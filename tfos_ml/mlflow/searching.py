"""``CrossValidator`` and ``TrainValidationSplit`` as one run with a child for each fit.

They fit in threads of their own, where no MLflow run is active. So the run is written on the
estimators that they copy and fit: a search is followed by replacing its ``_fit`` as long as
``autolog`` is on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.utils.autologging_utils import autologging_is_disabled

from tfos_ml.common.redact import redact
from tfos_ml.mlflow import content, patching, tracking_server
from tfos_ml.mlflow.runs import NOBODY, Parent, Runs, parent_of

if TYPE_CHECKING:
    from pyspark.ml import Estimator
    from pyspark.sql import DataFrame


def _searches() -> list[Any]:
    from pyspark.ml.tuning import CrossValidator, TrainValidationSplit

    return [CrossValidator, TrainValidationSplit]


def follow_searches(runs: Runs) -> None:
    """Give searches over our estimators a run, from now on."""
    for search in _searches():
        patching.replace_fit(search, functools.partial(_followed, runs))


def leave_searches() -> None:
    """Put back what :func:`follow_searches` replaced."""
    for search in _searches():
        patching.restore_fit(search)


def _followed(runs: Runs, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fit(self: Any, dataset: DataFrame) -> Any:
        if not list(_ours(self.getEstimator())):
            return original(self, dataset)
        with _search_run(runs) as parent:
            searching = self.copy()
            _adopt(searching, parent)
            is_logged = parent is not NOBODY and not _spark_logs_it()
            if is_logged:
                _attempt("does not take the search's Params", lambda: _log_search(MlflowClient(), parent, searching))
            try:
                model = original(searching, dataset)
            finally:
                _adopt(searching, None)  # the model keeps them
            if is_logged:
                log_best = functools.partial(_log_best, MlflowClient(), parent, searching, model)
                _attempt("does not take the search's result", log_best)
            return model

    return fit


def _adopt(search: Any, parent: Parent | None) -> None:
    """Write on the estimators of a search whose children their fits are."""
    for estimator in _ours(search.getEstimator()):
        estimator._parent_run = parent


def _spark_logs_it() -> bool:
    """Whether ``mlflow.pyspark.ml.autolog`` is on, which logs Params and results of searches itself."""
    return not autologging_is_disabled("pyspark.ml")  # type: ignore[no-untyped-call]


def _ours(estimator: Estimator[Any]) -> Iterator[Any]:
    """The estimators of tfos_ml within one, pipelines and searches opened."""
    from tfos_ml.stages.cluster_estimator import ClusterEstimator

    if isinstance(estimator, ClusterEstimator):
        yield estimator
    for inner in getattr(estimator, "getStages", list)():
        yield from _ours(inner)
    if hasattr(estimator, "getEstimator"):
        yield from _ours(estimator.getEstimator())


@contextmanager
def _search_run(runs: Runs) -> Iterator[Parent]:
    """The active run, or a new one that ends with the search."""
    active = runs.active_parent(is_search=True)
    if active is not None:
        yield active
        return
    begun: list[Any] = []
    if not _attempt("gives the search no run", lambda: begun.append(mlflow.start_run())):
        yield NOBODY
        return
    status = "KILLED"
    try:
        yield parent_of(begun[0], is_search=True)
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        if not _attempt("does not take the end of the search", lambda: mlflow.end_run(status)):
            with tracking_server.impatient(), suppress(Exception):
                mlflow.end_run(status)


def _attempt(what: str, action: Callable[[], Any]) -> bool:
    """Whether something worked; if MLflow does not take it, the search goes on."""
    return tracking_server.attempt(action, f"{what}: %s. The search goes on.")


def _log_search(client: MlflowClient, parent: Parent, search: Any) -> None:
    known = client.get_run(parent.run_id).data.params
    given = {p.name: search.getOrDefault(p) for p in search.params if search.isDefined(p)}
    plain = {name: redact(v, mark="") for name, v in given.items() if isinstance(v, (bool, int, float, str))}
    plain["estimator"] = type(search.getEstimator()).__name__
    plain["evaluator"] = type(search.getEvaluator()).__name__
    plain["paramMaps"] = str(len(search.getEstimatorParamMaps()))
    search_class = type(search)
    tags = {
        "estimator_name": search_class.__name__,
        "estimator_class": f"{search_class.__module__}.{search_class.__name__}",
    }
    client.log_batch(
        parent.run_id,
        params=[Param(name, value) for name, value in plain.items() if name not in known],
        tags=[RunTag(name, value) for name, value in tags.items()],
    )
    points = [content.grid_point(point) for point in search.getEstimatorParamMaps()]
    client.log_dict(parent.run_id, {"paramMaps": points}, "param_maps.json")


def _log_best(client: MlflowClient, parent: Parent, search: Any, model: Any) -> None:
    """The evaluator's metric of each param map, by its number, and the best."""
    evaluator = search.getEvaluator()
    values = model.avgMetrics if hasattr(model, "avgMetrics") else model.validationMetrics
    name = content.metric_name(
        f"search/{evaluator.getMetricName() if hasattr(evaluator, 'getMetricName') else 'metric'}"
    )
    best = max if evaluator.isLargerBetter() else min
    number = values.index(best(values))
    now = int(time.time() * 1000)
    known = client.get_run(parent.run_id).data.params
    params = {f"best_{n}": value for n, value in content.grid_point(search.getEstimatorParamMaps()[number]).items()}
    client.log_batch(
        parent.run_id,
        metrics=[Metric(name, float(value), now, step) for step, value in enumerate(values)],
        params=[Param(n, v) for n, v in params.items() if n not in known],
    )
