"""A search that tests start as a program: ``python search_program.py REMOTE-OR-MASTER DIRECTORY TRIALS [EPOCHS]``.

Prints a line when the study has a trial that is over and one that runs, and the result at the end.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import optuna
from optuna.distributions import CategoricalDistribution
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator
from tfos_ml.tuning import OptunaSearch


def curve(rate=0.1, units=4):
    """A small network; a rate of 0 learns nothing."""
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((1,)), keras.layers.Dense(units, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def rows(spark):
    number = F.col("id")
    columns = F.array((number / 120).cast("float")).alias("features"), F.sin(number / 30).alias("label")
    return spark.range(0, 240, 1, 2).select(*columns)


def session(where):
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return (builder.remote(where) if where.startswith("sc:") else builder.master(where)).getOrCreate()


def tell_when_under_way(study):
    while True:
        states = [trial.state.name for trial in study.get_trials(deepcopy=False)]
        if "RUNNING" in states and len(states) > 2:
            print("UNDER WAY", flush=True)
            return
        time.sleep(0.05)


def main(where, directory, trials, epochs="3"):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage, name = f"sqlite:///{directory}/study.db", "curve"
    study = optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
    threading.Thread(target=tell_when_under_way, args=(study,), daemon=True).start()
    spark = session(where)
    estimator = KerasEstimator(model=curve, batchSize=32, epochs=int(epochs), clusterSize=2, seed=1, verbose=0)
    search = OptunaSearch(
        estimator=estimator,
        space={"rate": CategoricalDistribution([0.0, 0.02, 0.1]), "units": CategoricalDistribution([2, 4, 8])},
        metric="val_loss",
        trainRatio=0.75,
        numTrials=int(trials),
        storage=storage,
        studyName=name,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
        seed=5,
    )
    model = search.fit(rows(spark))
    print("RESULT", json.dumps({"study": model.study, "trials": model.trials}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
