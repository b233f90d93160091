"""A study of Optuna, which a search opens, takes up where another program has left it, and reads."""

from __future__ import annotations

import threading
import warnings
from typing import Any

from tfos_ml.errors import ParamError
from tfos_ml.tuning.directions import Direction

# Attributes of trials:
ERROR, INTERRUPTED = "tfos_ml.error", "tfos_ml.interrupted"
PRUNE_SECONDS, RETRIES = "tfos_ml.prune_seconds", "tfos_ml.retries"


def open_study(storage: str | None, name: str | None, direction: Direction, pruner: Any = None) -> Any:
    """The study of a name in a storage, or a new one; raises ``ParamError`` if it has the other direction."""
    import optuna

    study = optuna.create_study(
        storage=storage, study_name=name, direction=direction, pruner=pruner, load_if_exists=True
    )
    if study.direction.name.lower() != direction:
        raise ParamError(
            f"The study {study.study_name!r} is to {study.direction.name.lower()}, not to {direction}. Give the "
            "search another studyName."
        )
    ask_one_at_a_time(study)
    return study


def tree_sampler(study: Any, seed: int, is_parallel: bool) -> Any:
    """A ``TPESampler``; in a study that goes on it does not draw again what it has drawn."""
    import optuna

    seed += len(study.get_trials(deepcopy=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of constant_liar
        return optuna.samplers.TPESampler(seed=seed, constant_liar=is_parallel)


def ask_one_at_a_time(study: Any) -> None:
    """Have threads ask a study for trials in turns: of SQLite, two could get the same waiting trial at once."""
    ask, lock = study.ask, threading.Lock()

    def ask_alone(*args: Any, **options: Any) -> Any:
        with lock:
            return ask(*args, **options)

    study.ask = ask_alone


def take_up(study: Any, wanted: int) -> int:
    """Go on with a study: returns how many trials are missing. Those that were interrupted are to be run again."""
    from optuna.trial import TrialState

    killed = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for trial in killed:
        study.tell(trial.number, state=TrialState.FAIL)
    trials = study.get_trials(deepcopy=False)
    again = {trial.user_attrs.get(RETRIES) for trial in trials}
    interrupted = {*(trial.number for trial in killed), *(t.number for t in trials if t.user_attrs.get(INTERRUPTED))}
    for number in sorted(interrupted - again):
        study.enqueue_trial(trials[number].params, user_attrs={RETRIES: number})
    again |= interrupted
    return max(0, wanted - sum(trial.state.is_finished() and trial.number not in again for trial in trials))


def table_of(study: Any) -> list[dict[str, Any]]:
    """The trials of a study as plain data."""
    return [
        {
            "number": trial.number,
            "state": trial.state.name,
            "value": trial.value,
            "params": dict(trial.params),
            "epochs": {str(step): value for step, value in trial.intermediate_values.items()},
            "seconds": None if trial.duration is None else round(trial.duration.total_seconds(), 3),
            "prune_seconds": trial.user_attrs.get(PRUNE_SECONDS),
            "error": trial.user_attrs.get(ERROR),
        }
        for trial in study.get_trials(deepcopy=False)
    ]
