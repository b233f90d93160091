"""The trials of a search: each is a fit, or one for each fold, which its pruner may end while it runs."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfos_ml.common import filesystems
from tfos_ml.common.spark_api import inheriting
from tfos_ml.common.timeouts import POLL_SECONDS, TRIALS_END_SECONDS
from tfos_ml.driver.spark_job import SparkJob
from tfos_ml.errors import FitCancelledError, ModelError, ParamError
from tfos_ml.protocol.messages import Report
from tfos_ml.stages.cluster_estimator import ClusterEstimator, cluster_estimators
from tfos_ml.stages.tf_model import TFModel
from tfos_ml.tuning.folds import MARK, parts_of
from tfos_ml.tuning.space import Space, chosen
from tfos_ml.tuning.study import ERROR, INTERRUPTED, PRUNE_SECONDS

if TYPE_CHECKING:
    from pyspark.ml import Estimator
    from pyspark.ml.evaluation import Evaluator
    from pyspark.ml.param import Param
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Objective:
    """What a trial computes: the mean over the folds of an evaluator's result, or of the last value of a metric.

    `cache_dirs` has, for each fold, the directory of the snapshot that all trials share.
    """

    estimator: Estimator[Any]
    space: Space
    folds: Sequence[DataFrame]
    evaluator: Evaluator | None
    metric: str | None
    cache_dirs: Sequence[str] = ()

    def __call__(self, trial: Any) -> float:
        """The value of a trial; raises ``FitCancelledError`` if it is pruned, and whatever the fit raises."""
        param_map = chosen(self.space, trial, self.estimator)
        values = [self._value(trial, number, param_map) for number in range(len(self.folds))]
        return sum(values) / len(values)

    def _value(self, trial: Any, number: int, param_map: dict[Param[Any], Any]) -> float:
        estimator, rows = self.estimator.copy(param_map), self.folds[number]
        own = list(cluster_estimators(estimator))
        for stage in own:
            _set_directories(stage, f"trial-{trial.number}-{number}")
            if self.cache_dirs:
                stage.setCacheDir(self.cache_dirs[number])
        if self.evaluator is not None:
            training, validation = parts_of(rows)
            return float(self.evaluator.evaluate(estimator.fit(training).transform(validation)))
        assert self.metric is not None
        for stage in own:
            if MARK in rows.columns:
                stage.setValidationIndicatorCol(MARK)
                if stage.hasParam("validationSplit"):
                    stage.clear(stage.getParam("validationSplit"))
            stage._watch = Watch(trial, self.metric) if number == 0 else None
        return last_value(estimator.fit(rows), self.metric)


def _set_directories(stage: ClusterEstimator, name: str) -> None:
    """Have a trial write into directories of its own, and publish nothing."""
    stage.clear(stage.getParam("exportDir"))
    for param in map(stage.getParam, ("modelDir", "logDir")):
        if stage.isSet(param):
            stage.set(param, filesystems.child_uri(stage.getOrDefault(param), name))


class Watch:
    """Reports the metric of each epoch to a trial while its fit runs, and ends the fit if the trial is pruned."""

    def __init__(self, trial: Any, metric: str):
        self._trial, self._metric = trial, metric
        self._epoch = -1.0  # the last one that was reported

    def __call__(self, reports: Sequence[Report]) -> None:
        """Take what the nodes have reported; raises ``FitCancelledError`` once."""
        for report in reports:
            epoch, value = report.epoch, report.metrics.get(self._metric)
            if epoch is None or value is None or epoch <= self._epoch:
                continue
            self._epoch = epoch
            self._trial.report(value, epoch)
            if self._trial.should_prune():
                self._epoch = math.inf  # the trial has ended
                raise _PrunedError(self._trial.number, epoch, self._metric, value)


class _PrunedError(FitCancelledError):
    def __init__(self, trial: int, epoch: int, metric: str, value: float):
        super().__init__(f"Trial {trial} was pruned after epoch {epoch + 1}, with {metric}={value:.6g}.")
        self.time = time.monotonic()


def last_value(model: Any, metric: str) -> float:
    """The last value of a metric in the history of a fitted model, or of the one in a fitted pipeline."""
    (fitted,) = (stage for stage in getattr(model, "stages", [model]) if isinstance(stage, TFModel))
    history = fitted.summary.history
    if not history.get(metric):
        raise ModelError(
            f"metric={metric!r} is not in the history of the fit, which has {sorted(history)}. Name one of these, or "
            "set validation for those of validation rows."
        )
    return history[metric][-1]


class Trials:
    """Runs trials of a study. ``failures`` has the errors of those that have failed, by number."""

    def __init__(self, study: Any, objective: Objective):
        self._study, self._objective = study, objective
        self._is_stopped = False
        self._wrong: ParamError | None = None  # every trial would raise it
        self.failures: dict[int, Exception] = {}

    def run(self, spark: SparkSession, count: int, parallelism: int) -> None:
        """Run so many trials. If this is interrupted, it cancels the fits that run.

        Raises what the study raises, as when its storage does not answer, and the first ``ParamError`` of a trial.
        """

        def optimize() -> None:  # with the job's tag, which the fits of all threads get
            self._study.optimize(inheriting(spark, self._run), count, n_jobs=parallelism, catch=(Exception,))

        job = SparkJob(spark, f"tfos_ml-search-{uuid.uuid4().hex[:12]}", optimize)
        try:
            while not job.wait(POLL_SECONDS):
                pass
        except BaseException:
            self._is_stopped = True
            job.cancel(TRIALS_END_SECONDS)
            raise
        if error := job.error or self._wrong:
            raise error

    def _run(self, trial: Any) -> float:
        from optuna import TrialPruned

        try:
            value = self._objective(trial)
            if math.isnan(value):
                raise ModelError("The value of the trial is NaN. Lower learning rates in the space.")
            return value
        except _PrunedError as pruned:
            trial.set_user_attr(PRUNE_SECONDS, round(time.monotonic() - pruned.time, 3))
            raise TrialPruned(str(pruned)) from None
        except TrialPruned:  # of the space itself
            raise
        except Exception as error:
            if isinstance(error, ParamError):
                self._wrong = error
                self._study.stop()
            if self._is_stopped:
                trial.set_user_attr(INTERRUPTED, True)
                self._study.stop()
                raise
            self.failures[trial.number] = error
            trial.set_user_attr(ERROR, f"{type(error).__name__}: {error}")
            raise
