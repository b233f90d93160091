"""The space of a search: what each trial sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.ml.param import Param

from tfos_ml.errors import ParamError
from tfos_ml.stages.cluster_estimator import cluster_estimators

if TYPE_CHECKING:
    from pyspark.ml import Estimator

Key = Param[Any] | str
Space = Callable[[Any], Mapping[Key, Any]] | Mapping[Key, Any]


def check(space: Space) -> None:
    """Raise ``ParamError`` if a dict has a value that is no distribution, or two Params of the same name."""
    from optuna.distributions import BaseDistribution

    if callable(space):
        return
    wrong = {name_of(key): value for key, value in space.items() if not isinstance(value, BaseDistribution)}
    if wrong:
        raise ParamError(f"space must have distributions of Optuna, such as IntDistribution(1, 9). Received: {wrong}")
    if len({name_of(key) for key in space}) < len(space):
        raise ParamError(
            f"space has several Params of the same name: {sorted(map(name_of, space))}. Pass a function of a trial, "
            "which gives them different names."
        )


def name_of(key: Key) -> str:
    """The name of a setting in the study."""
    return key.name if isinstance(key, Param) else key


def chosen(space: Space, trial: Any, estimator: Estimator[Any]) -> dict[Param[Any], Any]:
    """The param map of a trial; names that are no Params become arguments of the model function."""
    settings = space(trial) if callable(space) else {key: _suggested(trial, key, space[key]) for key in space}
    if not isinstance(settings, Mapping):
        raise ParamError(f"space must return a dict by Param, or by name of modelArgs. Received: {settings!r}")
    given = {key: value for key, value in settings.items() if isinstance(key, Param)}
    arguments = {key: value for key, value in settings.items() if not isinstance(key, Param)}
    if arguments:
        makers = [own for own in cluster_estimators(estimator) if own.hasParam("modelArgs")]
        if len(makers) != 1:
            raise ParamError(
                f"space has {sorted(arguments)}, arguments of a model function, but there are {len(makers)} "
                "KerasEstimators in the estimator. Give Params: {first.modelArgs: {...}}."
            )
        params = sorted(name for name in arguments if makers[0].hasParam(name))
        if params:
            raise ParamError(f"space has the names {params} of Params. Give the Params: estimator.{params[0]}.")
        of_model = makers[0].getParam("modelArgs")
        given[of_model] = {**makers[0].getOrDefault(of_model), **given.get(of_model, {}), **arguments}
    return given


def _suggested(trial: Any, key: Key, distribution: Any) -> Any:
    from optuna import distributions

    name = name_of(key)
    if isinstance(distribution, distributions.CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    suggest = trial.suggest_int if isinstance(distribution, distributions.IntDistribution) else trial.suggest_float
    return suggest(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
