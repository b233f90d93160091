"""A fit with minClusterSize goes on with the nodes that there are, and ends like plain Keras."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import wait_until
from resumed_model import BATCH, EPOCHS, Expected, network, stateful_callbacks
from settings import setting
from trained_rows import check_rows, note_steps

from tfos_ml import KerasEstimator, TFEstimator, errors
from tfos_ml.common.spark_api import session_thread

pytestmark = pytest.mark.filterwarnings("ignore:Training on several workers", "ignore:Skipping variable loading")


@pytest.fixture(scope="module")
def expected():
    return Expected()


def killer(directory: Path, victims):
    """A callback that sends signals to its process: {update: (worker, signal)}."""
    import keras

    class Kills(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
            done = int(self.model.optimizer.iterations)
            for update, (worker, number) in victims.items():
                mark = Path(directory, f"killed-{update}")
                if done >= update and rank == worker and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), number)

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


def same_bits(*files):
    """Whether two files of weights have the same."""
    found = []
    for file in files:
        model = network()
        model.load_weights(file)
        found.append([weights.tobytes() for weights in model.get_weights()])
    return found[0] == found[1]


def weights_file(tmp_path):
    return tmp_path / "export" / "assets.extra" / "model.weights.h5"


def test_too_few_slots_for_the_smallest_cluster_are_an_error_before_the_job(spark, tmp_path, expected):
    with pytest.raises(errors.NotEnoughSlotsError, match="clusterSize=7 needs 7 task slots at once, but Spark has 4"):
        estimator(tmp_path, clusterSize=7, minClusterSize=5).fit(expected.frame(spark))
    with pytest.raises(errors.ParamError, match="minClusterSize=3 is more than clusterSize=2"):
        KerasEstimator(model=network, clusterSize=2, minClusterSize=3).fit(expected.frame(spark))


def test_a_killed_process_and_one_that_is_told_to_end_change_nothing(spark, tmp_path, expected, caplog, capfd):
    """The first goes on at the last checkpoint, the second, which is no failure, at the very step.

    Nothing faster has real weights go through it, whose last bits have to be those of a fit that nobody disturbs.
    What is started again, and when, is decided in ``unit/test_restarts.py`` and in ``simulation/``.
    """
    victims = {
        4: (1, signal.SIGKILL),
        9: (0, signal.SIGTERM),
    }  # updates, each after two steps; SIGTERM ends all with the next
    common = {"clusterSize": 2, "minClusterSize": 1, "maxRestarts": 1}
    fitted = estimator(tmp_path, victims, checkpointSteps=3, verbose=2, **common).fit(expected.frame(spark))
    shown = [line for line in capfd.readouterr().out.splitlines() if line.startswith("Epoch ")]
    assert [line.split()[1] for line in shown] == [f"{epoch + 1}/{EPOCHS}" for epoch in range(EPOCHS)]
    expected.check(fitted.summary, weights_file(tmp_path))
    killed, told, last = fitted.summary.attempts
    assert [attempt["nodes"] for attempt in (killed, told, last)] == [2, 2, 2]
    assert (killed["epoch"], killed["step"]) < (told["epoch"], told["step"]) == (1, 7)
    assert "NodeExitError" in killed["ended"]
    assert "PreemptedError: worker:0" in told["ended"]
    assert not last["ended"]
    assert "worker:1 on 127.0.0.1: the process was ended by SIGKILL" in caplog.text
    assert "Going on with 2 of 2 nodes from epoch" in caplog.text
    estimator(tmp_path / "undisturbed", clusterSize=2).fit(expected.frame(spark))
    assert same_bits(weights_file(tmp_path), weights_file(tmp_path / "undisturbed"))


def until_larger(directory: Path, size: int):
    """A callback that waits in fewer than so many workers, after two epochs, for the driver to end the attempt."""
    import keras

    class Waits(keras.callbacks.Callback):
        chief_only = True

        def on_epoch_begin(self, epoch, logs=None):
            if len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]) < size and epoch > 0:
                (directory / "trains").touch()
                deadline = time.monotonic() + 60
                while epoch > 1 and time.monotonic() < deadline:
                    time.sleep(0.1)

    return Waits()


def hold(directory: str):
    """Hold a task slot until a training has begun without it."""

    def task(batches):
        Path(directory, f"holds-{os.getpid()}").touch()
        deadline = time.monotonic() + 120
        while not Path(directory, "trains").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield from batches

    return task


@pytest.mark.chaos  # simulation/ and random faults have growth, too
def test_it_begins_with_the_slots_that_are_free_and_grows(spark, tmp_path, expected, monkeypatch):
    monkeypatch.setattr("tfos_ml.driver.cluster_size.WORTH_SECONDS", 0.0)
    held = spark.range(0, 2, 1, 2).mapInArrow(hold(str(tmp_path)), "id long")
    holder = session_thread(spark, held.collect)
    holder.start()
    assert wait_until(lambda: len([*tmp_path.glob("holds-*")]) == 2, 60)
    fit = estimator(tmp_path, clusterSize=4, minClusterSize=1, checkpointSteps=3, reservationTimeout=5)
    fit.setModel(partial(network, notes=str(tmp_path)))
    fit.setCallbacks([note_steps(), *stateful_callbacks(), until_larger(tmp_path, 4)])
    with setting(spark, "growSeconds", "1"):
        fitted = fit.fit(expected.frame(spark))
    holder.join(60)
    sizes = [attempt["nodes"] for attempt in fitted.summary.attempts]
    assert sizes[0] == sizes[-1] == 4  # the first has waited for all slots in vain
    assert 2 in sizes
    expected.check(fitted.summary, weights_file(tmp_path))
    check_rows(tmp_path, expected.trained, BATCH, EPOCHS)


def count_to_six(args, ctx):
    """Count steps, each of which the chief saves; one worker is killed after the third."""
    import tensorflow as tf

    step = tf.Variable(0, dtype=tf.int64)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step), ctx.checkpoint_dir, max_to_keep=2)
    manager.restore_or_initialize()
    ctx.barrier("restored")  # the chief saves no step before all have restored the same one
    ctx.report({"began_at": int(step), "workers": ctx.num_workers}, epoch=ctx.restart_count)
    while int(step) < 6 and not ctx.is_preempted():
        step.assign_add(1)
        if ctx.is_chief:
            manager.save()
        ctx.barrier(f"step {int(step)}")
        if int(step) == 3 and ctx.worker_num == 1 and not ctx.restart_count:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore::tfos_ml.errors.NothingExportedWarning")
def test_a_train_function_goes_on_from_its_own_checkpoint(spark, tmp_path):
    df = spark.range(20).withColumnRenamed("id", "features")
    fit = TFEstimator(
        trainFn=count_to_six, clusterSize=2, minClusterSize=1, modelDir=str(tmp_path / "model"), verbose=0
    )
    fitted = fit.fit(df)
    assert [attempt["nodes"] for attempt in fitted.summary.attempts] == [2, 2]
    assert fitted.summary.history["began_at"][-1] in (3, 4)  # the chief may have saved one step more
