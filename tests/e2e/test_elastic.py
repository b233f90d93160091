"""A fit with minClusterSize goes on with the nodes that there are, and ends like plain Keras."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import wait_until
from resumed_model import BATCH, EPOCHS, Expected, network, stateful_callbacks
from tracking import logged, runs_of, series
from trained_rows import check_rows, note_steps

from tfos_ml import KerasEstimator, TFEstimator, errors

pytestmark = pytest.mark.filterwarnings("ignore:Training on several workers", "ignore:Skipping variable loading")


@pytest.fixture(scope="module")
def expected():
    return Expected()


def children(driver: int, word: str):
    """Processes below the driver with a word in their command, again and again; forks of others of these first."""
    import psutil

    found = []
    for process in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                found.append((word not in " ".join(process.parent().cmdline()), process.pid, process))
    forks = [process for is_first, _, process in sorted(found) if not is_first]
    return (forks or [process for *_, process in sorted(found)]) * 3


def killer(directory: Path, victims):
    """A callback that sends signals: {update: (worker, signal to its process, or word in the command to kill)}."""
    import keras

    driver = os.getpid()

    class Kills(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
            done = int(self.model.optimizer.iterations)
            for update, (worker, victim) in victims.items():
                mark = Path(directory, f"killed-{update}")
                if done < update or rank != worker or mark.exists():
                    continue
                mark.touch()
                if victim in ("SIGKILL", "SIGTERM"):
                    os.kill(os.getpid(), getattr(signal, victim))
                else:  # a Python worker of Spark's, or an executor
                    children(driver, victim)[worker].kill()

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


def test_more_nodes_at_least_than_at_most_are_an_error(spark, expected):
    with pytest.raises(errors.ParamError, match="minClusterSize=3 is more than clusterSize=2"):
        KerasEstimator(model=network, clusterSize=2, minClusterSize=3).fit(expected.frame(spark))


def test_a_killed_process_and_one_that_is_told_to_end_change_nothing(spark, tmp_path, expected, caplog, capfd):
    """The first goes on at the last checkpoint, the second, which is no failure, at the very step.

    Nothing faster has real weights go through it, whose last bits have to be those of a fit that nobody disturbs.
    What is started again, and when, is decided in ``unit/test_restarts.py`` and in ``simulation/``.
    """
    victims = {4: (1, "SIGKILL"), 9: (0, "SIGTERM")}  # updates, each after two steps; SIGTERM ends all with the next
    common = {"clusterSize": 2, "minClusterSize": 1, "maxRestarts": 1}
    with logged(f"sqlite:///{tmp_path}/mlflow.db", "elastic", log_models=False) as client:
        fit = estimator(tmp_path, victims, checkpointSteps=3, verbose=2, **common)
        fitted = fit.fit(expected.frame(spark))
    (run,) = runs_of(client, "elastic")
    curve = series(client, run, "loss")
    assert [step for step, _ in curve] == list(range(EPOCHS))
    np.testing.assert_allclose([value for _, value in curve], expected.history["loss"], rtol=1e-5)
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


@pytest.mark.chaos  # restarts.py decides, and its tests are in unit and simulation
def test_without_restarts_it_is_an_error_that_says_how_to_go_on(spark, tmp_path, expected):
    victims = {5: (0, "SIGTERM")}
    with pytest.raises(errors.PreemptedError, match="told to end, in epoch 1 after step 11 of 12. The state is in mod"):
        estimator(tmp_path, victims, clusterSize=1).fit(expected.frame(spark))
    with pytest.warns(UserWarning, match="Training continued from a checkpoint in modelDir"):
        fitted = estimator(tmp_path, victims, clusterSize=2).fit(expected.frame(spark))
    expected.check(fitted.summary, weights_file(tmp_path))


THREE = "local-cluster[3,1,1024]"


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
        deadline = time.monotonic() + 120
        while not Path(directory, "trains").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield from batches

    return task


@pytest.fixture
def growing(monkeypatch):
    """Let fits grow soon."""
    monkeypatch.setattr("tfos_ml.driver.cluster_size.WORTH_SECONDS", 0.0)
    changed = []

    def grows(spark):
        spark.conf.set("spark.tfos_ml.growSeconds", "1")
        changed.append(spark)
        return spark

    yield grows
    for spark in changed:
        spark.conf.unset("spark.tfos_ml.growSeconds")


@contextlib.contextmanager
def two_slots_held(spark, directory: Path):
    """Two tasks of another job, which wait for slots, and hold them until the training has begun without them."""
    job = partial(spark.range(0, 2, 1, 2).mapInArrow(hold(str(directory)), "id long").collect)
    held = threading.Thread(target=job)
    held.start()
    tracker = spark.sparkContext.statusTracker()

    def stages():
        return [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]

    assert wait_until(lambda: any(stage.numTasks == 2 and not stage.numActiveTasks for stage in stages()), 20)
    yield
    held.join()


def killer_of_executors(directory: Path, update: int):
    """A callback that kills all executors but its own after an update, once the test has said so."""
    import keras

    driver = os.getpid()

    class Kills(keras.callbacks.Callback):
        chief_only = True

        def on_train_batch_end(self, batch, logs=None):
            import psutil

            mark = directory / "killed"
            if int(self.model.optimizer.iterations) < update or mark.exists():
                return
            (directory / "runs").touch()
            while not (directory / "waits").exists():  # the test has a deadline
                time.sleep(0.1)
            mark.touch()
            own = [process.pid for process in psutil.Process().parents()]
            for process in psutil.Process(driver).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()) and process.pid not in own:
                        process.kill()

    return Kills()


@pytest.mark.chaos
@pytest.mark.parametrize("update", [2, 6, 11, 13, 17])
def test_it_shrinks_to_one_node_and_grows_back(growing, sessions, tmp_path, expected, update, caplog):
    spark = growing(sessions.get(THREE))
    fit = estimator(tmp_path, clusterSize=3, minClusterSize=1, checkpointSteps=3, reservationTimeout=10)
    fit.setModel(partial(network, notes=str(tmp_path)))
    fit.setCallbacks(
        [note_steps(), *stateful_callbacks(), killer_of_executors(tmp_path, update), until_larger(tmp_path, 3)]
    )

    def other_job():
        assert wait_until((tmp_path / "runs").exists, 120)
        with two_slots_held(spark, tmp_path):
            (tmp_path / "waits").touch()

    other = threading.Thread(target=other_job)
    other.start()
    fitted = fit.fit(expected.frame(spark))
    other.join()
    sizes = [attempt["nodes"] for attempt in fitted.summary.attempts]
    assert sizes[0] == sizes[-1] == 3
    assert 1 in sizes
    assert "Going on with 1 of 3 nodes from epoch" in caplog.text
    assert "Going on with 3 of 3 nodes from epoch" in caplog.text
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


def train_with_backup(args, ctx):
    """Five epochs of Keras's own ``fit``, whose process is killed after the third."""
    import keras

    class Kills(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            ctx.report({"begins": epoch}, epoch=epoch)
            if epoch == 3 and not ctx.restart_count:
                os.kill(os.getpid(), signal.SIGKILL)

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(f"{ctx.checkpoint_dir}/backup")
    rows = ctx.dataset().map(lambda features, label: (features[:, None], label))
    model.fit(rows, epochs=5, callbacks=[backup, Kills()], verbose=0)


@pytest.mark.filterwarnings("ignore::tfos_ml.errors.NothingExportedWarning")
def test_a_train_function_goes_on_from_the_backup_of_keras(spark, tmp_path):
    df = spark.range(20).selectExpr("id / 20 as features", "id / 10 as label")
    fit = TFEstimator(
        trainFn=train_with_backup, clusterSize=1, maxRestarts=1, epochs=5, modelDir=str(tmp_path), verbose=0
    )
    assert fit.fit(df).summary.history["begins"] == [3, 4]


@pytest.mark.chaos
def test_executors_come_and_go_under_dynamic_allocation(sessions, tmp_path, expected):
    spark = sessions.get(
        "local-cluster[3,1,1024]",
        spark_dynamicAllocation_enabled="true",
        spark_dynamicAllocation_shuffleTracking_enabled="true",
        spark_dynamicAllocation_minExecutors="0",
        spark_dynamicAllocation_initialExecutors="1",
    )
    victims = {5: (0, "CoarseGrainedExecutorBackend"), 15: (1, "CoarseGrainedExecutorBackend")}
    fit = estimator(tmp_path, victims, clusterSize=3, minClusterSize=1, checkpointSteps=3, reservationTimeout=60)
    fitted = fit.fit(expected.frame(spark))
    assert len(fitted.summary.attempts) > 1
    expected.check(fitted.summary, weights_file(tmp_path))
