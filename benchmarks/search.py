"""A search of 20 trials: ``OptunaSearch`` beside MLflow's ``MlflowSparkStudy`` and beside Optuna in one process.

All have the same rows, validation rows, space, sampler (TPE, seed 1), pruner (median) and two task slots: two trials at
a time in ``OptunaSearch`` and ``MlflowSparkStudy``, each on one node or in one Python worker; one process of Optuna
trains one trial at a time, on all cores. Seconds are those from the call to its return, with the start of all
processes; ``OptunaSearch`` then also fits the best Params on all rows. Jobs are those that Spark still runs afterwards.

``--killed`` kills the program with ``kill -9`` when it is under way, and starts it again.

    python benchmarks/search.py [--trials 20] [--master "local[2]" | --remote sc://host:15002] [--nodes 1] [--killed]
        [--contenders ours mlflow plain]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import numpy as np
import optuna

ROWS, WIDTH, EPOCHS, SEED = 4000, 20, 30, 1
PARALLEL = 2


def arrays() -> tuple[Any, Any, Any]:
    """Features, labels, and which rows are for validation."""
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, WIDTH)).astype("float32")
    y = np.tanh(x @ random.normal(size=WIDTH)) + 0.3 * x[:, 0] * x[:, 1]
    return x, y.astype("float32"), np.arange(ROWS) % 5 == 0


def make_model(units: int = 8, rate: float = 0.01) -> Any:
    """A network whose size and rate are searched."""
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((WIDTH,)), keras.layers.Dense(units, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(rate), "mse")
    return model


def space(trial: Any) -> dict[str, Any]:
    """What a trial sets."""
    return {"units": trial.suggest_int("units", 2, 64), "rate": trial.suggest_float("rate", 1e-5, 0.1, log=True)}


def pruner() -> Any:
    """The pruner of all contenders."""
    return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=3)


def objective(trial: Any) -> float:
    """A trial of plain Keras, as in the documentation of Optuna."""
    import keras

    x, y, held = arrays()

    class Report(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            trial.report(logs["val_loss"], epoch)
            if trial.should_prune():
                raise optuna.TrialPruned

    model = make_model(**space(trial))
    history = model.fit(
        x[~held],
        y[~held],
        validation_data=(x[held], y[held]),
        epochs=EPOCHS,
        batch_size=64,
        verbose=0,
        callbacks=[Report()],
    )
    return float(history.history["val_loss"][-1])


def session(options: argparse.Namespace) -> Any:
    """The Spark session that the options name."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    if options.remote:
        return builder.remote(options.remote).getOrCreate()
    return builder.master(options.master).config("spark.executor.memory", "900m").getOrCreate()


def jobs_left(spark: Any, options: argparse.Namespace) -> int | None:
    """Jobs that Spark runs a second after the search; unknown to a client of Spark Connect."""
    if options.remote:
        return None
    time.sleep(1)
    return len(spark.sparkContext.statusTracker().getActiveJobsIds())


def ours(options: argparse.Namespace) -> dict[str, Any]:
    """``OptunaSearch``."""
    import pandas as pd

    from tfos_ml import KerasEstimator
    from tfos_ml.tuning import OptunaSearch

    spark = session(options)
    x, y, held = arrays()
    df = spark.createDataFrame(pd.DataFrame({"features": x.tolist(), "label": y, "held": held})).repartition(2)
    estimator = KerasEstimator(
        model=make_model, epochs=EPOCHS, batchSize=64, clusterSize=options.nodes, seed=SEED, verbose=0
    )
    search = OptunaSearch(
        estimator=estimator,
        space=space,
        metric="val_loss",
        foldCol="held",
        numTrials=options.trials,
        parallelism=options.parallelism,
        pruner=pruner(),
        seed=SEED,
    )
    if options.storage:
        search.setStorage(options.storage).setStudyName("search")
    began = time.perf_counter()
    model = search.fit(df)
    seconds = time.perf_counter() - began
    pruned = [trial["prune_seconds"] for trial in model.trials if trial["state"] == "PRUNED"]
    result = result_of([trial["state"] for trial in model.trials], model.study["best_value"], seconds)
    left = jobs_left(spark, options)
    spark.stop()
    return {**result, "jobs left": left, "slowest prune": max(pruned, default=None)}


def mlflow(options: argparse.Namespace) -> dict[str, Any]:
    """``MlflowSparkStudy``, with a store of its own."""
    import mlflow
    from mlflow.optuna.storage import MlflowStorage
    from mlflow.pyspark.optuna.study import MlflowSparkStudy

    with tempfile.TemporaryDirectory() as directory:
        mlflow.set_tracking_uri(f"sqlite:///{directory}/runs.db")
        experiment = mlflow.create_experiment("search", artifact_location=f"{directory}/artifacts")
        spark = session(options)
        began = time.perf_counter()
        study = MlflowSparkStudy(
            "search",
            MlflowStorage(experiment_id=experiment),
            sampler=optuna.samplers.TPESampler(seed=SEED, constant_liar=True),
            pruner=pruner(),
        )
        study.optimize(objective, n_trials=options.trials, n_jobs=options.parallelism)
        seconds = time.perf_counter() - began
        result = result_of([trial.state.name for trial in study.trials], study.best_value, seconds)
        left = jobs_left(spark, options)
        spark.stop()
        return {**result, "jobs left": left}


def plain(options: argparse.Namespace) -> dict[str, Any]:
    """Optuna in this process, without Spark."""
    began = time.perf_counter()
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=SEED), pruner=pruner())
    study.optimize(objective, n_trials=options.trials)
    seconds = time.perf_counter() - began
    return result_of([trial.state.name for trial in study.trials], study.best_value, seconds)


def result_of(states: list[str], best: float, seconds: float) -> dict[str, Any]:
    """The result of a contender."""
    counts = {state: states.count(state) for state in sorted(set(states))}
    return {"seconds": round(seconds, 1), "best value": round(best, 5), "trials": counts}


def run(name: str, storage: str = "", kills_after: int | None = None) -> dict[str, Any] | None:
    """The result of a contender in a process of its own; None if it was killed, once so many trials were over."""
    given = [*sys.argv[1:], "--alone", name, *(["--storage", storage] if storage else [])]
    with tempfile.TemporaryFile("w+") as lines:
        process = subprocess.Popen([sys.executable, __file__, *given], stdout=subprocess.PIPE, stderr=lines, text=True)
        if kills_after is not None and wait_for_trials(storage, kills_after, process):
            process.send_signal(signal.SIGKILL)
        said, _ = process.communicate(timeout=1800)
        if process.returncode == -signal.SIGKILL:
            return None
        if process.returncode:
            lines.seek(0)
            return {"failed": lines.read()[-1500:]}
    return json.loads(said.splitlines()[-1])


def wait_for_trials(storage: str, count: int, process: subprocess.Popen[str]) -> bool:
    """Wait until so many trials are over and one runs; returns False if the program has ended before."""
    while process.poll() is None:
        states = [trial.state.name for trial in trials_of(storage)]
        if len(states) - states.count("RUNNING") >= count and "RUNNING" in states:
            return True
        time.sleep(0.1)
    return False


def trials_of(storage: str) -> list[Any]:
    """The trials in a storage."""
    try:
        return optuna.load_study(study_name="search", storage=storage).trials
    except KeyError:  # it does not exist yet
        return []


def killed(options: argparse.Namespace) -> None:
    """Kill a search in the middle, and start it again."""
    with tempfile.TemporaryDirectory() as directory:
        storage = f"sqlite:///{directory}/study.db"
        optuna.create_study(storage=storage, study_name="search")
        assert run("ours", storage, kills_after=options.trials // 2) is None
        before = [trial.state.name for trial in trials_of(storage)]
        print("killed with", {state: before.count(state) for state in sorted(set(before))}, flush=True)
        print("started again", json.dumps(run("ours", storage)), flush=True)


CONTENDERS = {"ours": ours, "mlflow": mlflow, "plain": plain}


def main() -> None:
    """Run the contenders one after another, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--remote")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--parallelism", type=int, default=PARALLEL)
    parser.add_argument("--killed", action="store_true")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--alone", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--storage", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if options.alone:
        print(json.dumps(CONTENDERS[options.alone](options)))
    elif options.killed:
        killed(options)
    else:
        for name in options.contenders:
            print(f"{name:8}", json.dumps(run(name)), flush=True)


if __name__ == "__main__":
    main()
