"""``OptunaSearch``: a search with Optuna as a Spark ML estimator, and its model."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator, Model

from tfos_ml import errors
from tfos_ml.common.arguments import check_not_streaming
from tfos_ml.common.local_files import Content, bytes_of
from tfos_ml.common.optional_packages import needed_by
from tfos_ml.common.tracebacks import concise
from tfos_ml.protocol.pickling import PROGRAM_FILE, pack_program, unpack_program
from tfos_ml.stages.cluster_estimator import cluster_estimators, snapshot_of_search
from tfos_ml.stages.keywords import OptunaSearchConstructor
from tfos_ml.stages.params import SearchParams
from tfos_ml.stages.params_base import document_params
from tfos_ml.stages.persistence import Saveable
from tfos_ml.tuning.directions import MAXIMIZE, MINIMIZE, Direction, direction_of
from tfos_ml.tuning.folds import Folds
from tfos_ml.tuning.space import check, chosen
from tfos_ml.tuning.study import open_study, table_of, take_up, tree_sampler
from tfos_ml.tuning.trials import Objective, Trials

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.ml.param import Param
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@document_params
class OptunaSearch(OptunaSearchConstructor, SearchParams, Estimator[Any], Saveable):
    """Searches hyperparameters with Optuna: each trial is a fit, on as many nodes as it asks for.

    With ``metric``, each epoch of a fit is reported to its trial while the fit runs, and a trial that the pruner finds
    worse than others is ended at once. With ``evaluator``, trials run to their end. ``fit`` returns the model of the
    best trial's Params, fitted on all rows.

    Trials that fail do not end the search, unless a Param cannot have its value (``ParamError``). With ``storage`` and
    ``studyName``, a search that was interrupted goes on with the trials that are missing; only one program may run a
    study at a time.

    Parameters
    ----------
    estimator : pyspark.ml.Estimator
        A ``KerasEstimator`` or ``TFEstimator``, or a ``Pipeline`` with one; with ``evaluator`` any estimator.
    space : callable or dict
        A function of an ``optuna.Trial`` that returns a dict, or a dict of Optuna's distributions. The keys are Params
        of the estimator, or of stages of the pipeline, and names of arguments of the model function (``modelArgs``).
    evaluator : pyspark.ml.evaluation.Evaluator, optional
        Computes the value of a trial from the scored validation rows; in place of ``metric``.
    sampler : optuna.samplers.BaseSampler, optional
        The default is ``TPESampler`` with ``seed``: with ``parallelism=1`` a search has the same trials each time.
    pruner : optuna.pruners.BasePruner, optional
        The default is Optuna's, ``MedianPruner``. With several folds, the epochs of the first one are reported.

    Examples
    --------
    >>> from optuna.distributions import IntDistribution                              # doctest: +SKIP
    >>> estimator = KerasEstimator(model=make_model, epochs=20, clusterSize=2)        # doctest: +SKIP
    >>> space = {"units": IntDistribution(4, 64)}                                     # doctest: +SKIP
    >>> search = OptunaSearch(estimator=estimator, space=space, metric="val_loss")    # doctest: +SKIP
    >>> found = search.fit(df)                                                        # doctest: +SKIP
    >>> found.study["best_params"], found.transform(df)                               # doctest: +SKIP
    """

    __module__ = "tfos_ml.tuning"

    def copy(self, extra: dict[Param[Any], Any] | None = None) -> OptunaSearch:
        """A copy with copies of the estimator and the evaluator, to which Params of theirs in `extra` go."""
        copied = super().copy(extra)
        copied._arguments = {**self._arguments, **{name: part.copy(extra) for name, part in self._parts().items()}}
        return copied

    @concise
    def _fit(self, dataset: DataFrame) -> OptunaSearchModel:
        check_not_streaming(dataset, "OptunaSearch.fit")
        self._check_params()
        self._check_arguments()
        study = self._study()
        failures: dict[int, Exception] = {}
        if missing := take_up(study, self._get("numTrials")):
            with ExitStack() as shared:
                trials = Trials(study, self._objective(dataset, shared))
                trials.run(dataset.sparkSession, missing, self._get("parallelism"))
                failures = trials.failures
        _check_outcome(study, failures)
        best = chosen(self.getSpace(), study.best_trial, self.getEstimator())
        model = OptunaSearchModel()
        model.bestModel = self.getEstimator().copy(best).fit(dataset)
        model.study, model.trials = self._summary(study), table_of(study)
        model._resetUid(self.uid)
        return model

    def _check_arguments(self) -> None:
        evaluator, metric = self.getEvaluator(), self._get("metric")
        lacking = [name for name in ("estimator", "space") if self._arguments[name] is None]
        if lacking:
            raise errors.ParamError(f"{' and '.join(lacking)} must be set: OptunaSearch(estimator=..., space=...).")
        if (evaluator is None) == (metric is None):
            raise errors.ParamError(
                "Set either metric, a name in the history of the fit such as 'val_loss', or evaluator. "
                f"Received: metric={metric!r}, evaluator={evaluator!r}"
            )
        if evaluator is not None and not self._folds().is_set:
            raise errors.ParamError("An evaluator needs validation rows: set trainRatio=0.8, or numFolds=3.")
        if evaluator is not None and self.getPruner() is not None:
            raise errors.ParamError(
                f"Only epochs of a metric are pruned: set metric, or unset pruner={self.getPruner()!r}."
            )
        own = list(cluster_estimators(self.getEstimator()))
        if metric is not None and len(own) != 1:
            raise errors.ParamError(
                f"metric={metric!r} needs one KerasEstimator or TFEstimator in the estimator; there are {len(own)}. "
                "Use an evaluator."
            )
        if self._get("storage") and not self._get("studyName"):
            raise errors.ParamError("storage needs studyName, the name by which a search finds its study again.")

    def _direction(self) -> Direction:
        given: Direction | None = self._get("direction")
        if self.getEvaluator() is not None:
            natural = MAXIMIZE if self.getEvaluator().isLargerBetter() else MINIMIZE
            if given not in (None, natural):
                raise errors.ParamError(f"direction={given!r}, but the evaluator is to {natural}. Unset direction.")
            return natural
        metric = self._get("metric")
        known = given or direction_of(metric)
        if known is None:
            raise errors.ParamError(
                f"Set direction, 'minimize' or 'maximize': metric={metric!r} has the name of no metric of Keras."
            )
        return known

    def _folds(self) -> Folds:
        return Folds(self._get("trainRatio"), self._get("numFolds"), self._get("foldCol"))

    def _study(self) -> Any:
        with needed_by("OptunaSearch"):
            import optuna  # noqa: F401

        check(self.getSpace())
        study = open_study(self._get("storage"), self._get("studyName"), self._direction(), self.getPruner())
        study.sampler = self.getSampler() or tree_sampler(study, self._get("seed"), self._get("parallelism") > 1)
        return study

    def _objective(self, dataset: DataFrame, shared: ExitStack) -> Objective:
        """What the trials compute, on rows that are computed once; `shared` ends with the search."""
        folds, estimator = self._folds(), self.getEstimator()
        evaluator, metric = self.getEvaluator(), self._get("metric")
        rows = folds.marked(dataset, self._get("seed")) if folds.is_set else dataset
        cache_dirs = {own.getCacheDir() for own in cluster_estimators(estimator) if own._get("cacheDir")}
        level = dataset.storageLevel
        if evaluator is not None or not (cache_dirs or level.useMemory or level.useDisk):
            rows = rows.persist()
            shared.callback(rows.unpersist)
        parts = folds.split(rows) if folds.is_set else [rows]
        if len(cache_dirs) == 1:
            cache_dir = cache_dirs.pop()
            directories = [snapshot_of_search(cache_dir, dataset.sparkSession, shared) for _ in parts]
        else:
            directories = []
        return Objective(estimator, self.getSpace(), parts, evaluator, metric, directories)

    def _summary(self, study: Any) -> dict[str, Any]:
        evaluator = self.getEvaluator()
        metric = self._get("metric") if evaluator is None else type(evaluator).__name__
        if evaluator is not None and hasattr(evaluator, "getMetricName"):
            metric = evaluator.getMetricName()
        return {
            "name": study.study_name,
            "metric": metric,
            "direction": study.direction.name.lower(),
            "best_trial": study.best_trial.number,
            "best_value": study.best_value,
            "best_params": dict(study.best_params),
        }

    def transformSchema(self, schema: StructType) -> StructType:
        """Schema of ``transform`` of the fitted model, as the estimator knows it."""
        transformed: StructType = self.getEstimator().transformSchema(schema)
        return transformed

    def _parts(self) -> dict[str, Any]:
        return {name: self._arguments[name] for name in ("estimator", "evaluator") if self._arguments[name] is not None}

    def _set_parts(self, parts: dict[str, Any]) -> None:
        self._arguments = {**self._arguments, **parts}

    def _files(self) -> dict[str, bytes]:
        rest = {name: value for name, value in self._arguments.items() if name not in self._parts()}
        function = rest["space"] if callable(rest["space"]) else None
        return {PROGRAM_FILE: pack_program("The space", function, rest, rest)}

    def _restore(self, files: Mapping[str, Content], metadata: dict[str, Any]) -> None:
        self._arguments = {**self._arguments, **unpack_program(bytes_of(files[PROGRAM_FILE]))}


def _check_outcome(study: Any, failures: dict[int, Exception]) -> None:
    """Raise ``SearchError`` if no trial has a result."""
    from optuna.trial import TrialState

    if study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        return
    states = [trial.state.name for trial in study.get_trials(deepcopy=False)]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    first = f" The first failure: {type(e).__name__}: {e}" if (e := failures.get(min(failures, default=-1))) else ""
    raise errors.SearchError(f"None of {len(states)} trials has a result ({counts}).{first}", failures)


class OptunaSearchModel(Model, Saveable):
    """The result of ``OptunaSearch.fit``.

    Attributes
    ----------
    bestModel : pyspark.ml.Model
        The model of the best trial's Params, fitted on all rows; a ``PipelineModel`` if the estimator is a pipeline.
    study : dict
        ``name``, ``metric`` and ``direction`` of the study; ``best_trial``, ``best_value``, ``best_params``.
    trials : list of dict
        For each trial ``number``, ``state`` ("COMPLETE", "PRUNED", "FAIL"), ``value``, ``params``, ``epochs`` (the
        metric by epoch), ``seconds``, ``prune_seconds`` (from the pruner's decision to the end of the Spark job) and
        ``error``.
    """

    __module__ = "tfos_ml.tuning"

    def __init__(self) -> None:
        super().__init__()
        self.bestModel: Any = None
        self.study: dict[str, Any] = {}
        self.trials: list[dict[str, Any]] = []

    def _transform(self, dataset: DataFrame) -> DataFrame:
        transformed: DataFrame = self.bestModel.transform(dataset)
        return transformed

    def transformSchema(self, schema: StructType) -> StructType:
        """Schema of ``transform``."""
        transformed: StructType = self.bestModel.transformSchema(schema)
        return transformed

    def copy(self, extra: dict[Param[Any], Any] | None = None) -> OptunaSearchModel:
        """A copy with a copy of the best model, to which the Params in `extra` go."""
        copied = super().copy(extra)
        copied.bestModel = self.bestModel.copy(extra)
        return copied

    def _parts(self) -> dict[str, Any]:
        return {"bestModel": self.bestModel}

    def _set_parts(self, parts: dict[str, Any]) -> None:
        self.bestModel = parts["bestModel"]

    def _extra_metadata(self) -> dict[str, Any]:
        return {"study": self.study, "trials": self.trials}

    def _restore(self, files: Mapping[str, Content], metadata: dict[str, Any]) -> None:
        self.study, self.trials = metadata["study"], metadata["trials"]
