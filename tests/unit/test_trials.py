"""Trials of a study are run once each by several threads; ``e2e/test_search.py`` interrupts searches."""

from __future__ import annotations

import pytest

optuna = pytest.importorskip("optuna")  # which sessions of other versions lack
from optuna.trial import TrialState  # noqa: E402

from tfos_ml import errors  # noqa: E402
from tfos_ml.tuning.study import open_study  # noqa: E402


def study_in(tmp_path, direction="minimize"):
    return open_study(f"sqlite:///{tmp_path}/study.db", "s", direction)


def test_threads_never_run_the_same_waiting_trial(tmp_path):
    study = study_in(tmp_path)
    for x in range(12):
        study.enqueue_trial({"x": x})
    study.optimize(lambda trial: trial.suggest_int("x", 0, 99), 12, n_jobs=6)
    assert sorted(trial.params["x"] for trial in study.trials) == list(range(12))
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_a_study_that_goes_on_has_its_direction(tmp_path):
    study_in(tmp_path)
    with pytest.raises(errors.ParamError, match="'s' is to minimize, not to maximize. Give the search another"):
        study_in(tmp_path, "maximize")
