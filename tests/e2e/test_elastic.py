"""A fit with minClusterSize goes on with the nodes that there are, and ends like plain Keras."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from resumed_model import BATCH, EPOCHS, Expected, network, stateful_callbacks
from tracking import logged, runs_of, series

from tfos_ml import KerasEstimator, errors

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Training on several workers", "ignore:Skipping variable loading"),
]


@pytest.fixture(scope="module")
def expected():
    return Expected()


def killer(directory: Path, victims):
    """A callback that sends signals: {update: (worker, signal to its process, or words of the command to kill)}."""
    import keras

    class Kills(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            import json

            import psutil

            rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
            done = int(self.model.optimizer.iterations)
            for update, (worker, victim) in victims.items():
                mark = Path(directory, f"killed-{update}")
                if done < update or rank != worker or mark.exists():
                    continue
                mark.touch()
                if victim in ("SIGKILL", "SIGTERM"):
                    os.kill(os.getpid(), getattr(signal, victim))
                else:  # the Python worker of Spark's, or the executor
                    above = [p for p in psutil.Process().parents() if victim in " ".join(p.cmdline())]
                    above[0].kill()

    return Kills()


def estimator(tmp_path, victims=None, **params):
    killing = [killer(tmp_path, victims)] if victims else []
    common = {
        "model": network,
        "callbacks": [*stateful_callbacks(), *killing],
        "modelDir": str(tmp_path / "model"),
        "exportDir": str(tmp_path / "export"),
        "validationIndicatorCol": "held",
        "epochs": EPOCHS,
        "batchSize": BATCH,
        "shuffle": False,
        "verbose": 0,
    }
    return KerasEstimator(**{**common, **params})


def weights_file(tmp_path):
    return tmp_path / "export" / "assets.extra" / "model.weights.h5"


def test_it_begins_with_the_slots_that_there_are(spark, tmp_path, expected):
    fitted = estimator(tmp_path, clusterSize=7, minClusterSize=2).fit(expected.frame(spark))
    (attempt,) = fitted.summary.attempts
    assert (attempt["nodes"], attempt["ended"]) == (4, "")
    expected.check(fitted.summary, weights_file(tmp_path))


def test_too_few_slots_for_the_smallest_cluster_are_an_error_before_the_job(spark, tmp_path, expected):
    with pytest.raises(errors.NotEnoughSlotsError, match="clusterSize=7 needs 7 task slots at once, but Spark has 4"):
        estimator(tmp_path, clusterSize=7, minClusterSize=5).fit(expected.frame(spark))


def test_more_nodes_at_least_than_at_most_are_an_error(spark, expected):
    with pytest.raises(errors.ParamError, match="minClusterSize=3 is more than clusterSize=2"):
        KerasEstimator(model=network, clusterSize=2, minClusterSize=3).fit(expected.frame(spark))


def test_killed_processes_are_started_again_at_the_last_checkpoint(spark, tmp_path, expected, caplog, capfd):
    victims = {4: (1, "SIGKILL"), 12: (0, "SIGKILL"), 20: (1, "SIGKILL")}
    with logged(f"sqlite:///{tmp_path}/mlflow.db", "elastic", log_models=False) as client:
        fit = estimator(tmp_path, victims, clusterSize=3, minClusterSize=2, checkpointSteps=3, verbose=2)
        fitted = fit.fit(expected.frame(spark))
    (run,) = runs_of(client, "elastic")
    curve = series(client, run, "loss")
    assert [step for step, _ in curve] == list(range(EPOCHS))
    np.testing.assert_allclose([value for _, value in curve], expected.history["loss"], rtol=1e-5)
    shown = [line for line in capfd.readouterr().out.splitlines() if line.startswith("Epoch ")]
    assert [line.split()[1] for line in shown] == [f"{epoch + 1}/{EPOCHS}" for epoch in range(EPOCHS)]
    expected.check(fitted.summary, weights_file(tmp_path))
    attempts = fitted.summary.attempts
    assert len(attempts) == 4
    assert [attempt["nodes"] for attempt in attempts] == [3, 3, 3, 3]
    places = [(attempt["epoch"], attempt["step"]) for attempt in attempts]
    assert places == sorted(places)
    assert all("NodeExitError" in attempt["ended"] for attempt in attempts[:-1])
    assert "worker:1 on 127.0.0.1: the process was ended by SIGKILL" in caplog.text
    assert "going on with 3 of 3 nodes from epoch" in caplog.text


def test_a_process_that_is_told_to_end_goes_on_at_the_very_step(spark, tmp_path, expected):
    victims = {5: (1, "SIGTERM"), 9: (0, "SIGTERM")}  # updates, each after two steps; then all end with the next step
    fitted = estimator(tmp_path, victims, clusterSize=2, maxRestarts=1).fit(expected.frame(spark))
    expected.check(fitted.summary, weights_file(tmp_path))
    first, second, last = fitted.summary.attempts
    assert [(a["epoch"], a["step"]) for a in (first, second)] == [(0, 11), (1, 7)]
    assert "PreemptedError: worker:1" in first["ended"]
    assert "PreemptedError: worker:0" in second["ended"]
    assert not last["ended"]


def test_without_restarts_it_is_an_error_that_says_how_to_go_on(spark, tmp_path, expected):
    victims = {5: (0, "SIGTERM")}
    with pytest.raises(errors.PreemptedError, match="told to end, in epoch 1 after step 11 of 12. The state is in mod"):
        estimator(tmp_path, victims, clusterSize=1).fit(expected.frame(spark))
    fitted = estimator(tmp_path, victims, clusterSize=2).fit(expected.frame(spark))
    expected.check(fitted.summary, weights_file(tmp_path))
