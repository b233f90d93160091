"""Trials of a study are run once each, also by several threads and after an interruption."""

from __future__ import annotations

import pytest

optuna = pytest.importorskip("optuna")  # which sessions of other versions lack
from optuna.trial import TrialState  # noqa: E402

from tfos_ml import errors  # noqa: E402
from tfos_ml.tuning.study import open_study, take_up  # noqa: E402


def study_in(tmp_path, direction="minimize"):
    return open_study(f"sqlite:///{tmp_path}/study.db", "s", direction)


def test_threads_never_run_the_same_waiting_trial(tmp_path):
    study = study_in(tmp_path)
    for x in range(24):
        study.enqueue_trial({"x": x})
    study.optimize(lambda trial: trial.suggest_int("x", 0, 99), 24, n_jobs=8)
    assert sorted(trial.params["x"] for trial in study.trials) == list(range(24))
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_interrupted_trials_are_repeated_once_and_the_others_count(tmp_path):
    study = study_in(tmp_path)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), 2)
    interrupted = study.ask()
    x = interrupted.suggest_float("x", 0, 1)
    for _ in range(2):  # the second program ends before its first trial
        study = study_in(tmp_path)
        assert take_up(study, 5) == 3
    waiting = study.get_trials(states=(TrialState.WAITING,))
    assert [trial.system_attrs["fixed_params"] for trial in waiting] == [{"x": x}]
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), 3)
    assert take_up(study, 5) == 0
    assert [trial.params["x"] for trial in study.trials].count(x) == 2


def test_a_study_that_goes_on_has_its_direction(tmp_path):
    study_in(tmp_path)
    with pytest.raises(errors.ParamError, match="'s' is to minimize, not to maximize. Give the search another"):
        study_in(tmp_path, "maximize")
