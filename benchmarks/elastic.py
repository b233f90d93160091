"""What checkpoints within an epoch cost, and how soon an elastic fit goes on after processes are killed.

The convolutional network of ``training.py`` trains on two workers of one thread each, with a checkpoint after every 50
steps and without, in turns. Then a small network trains on three executors; the processes of one node, or of all three
at once, are killed with SIGKILL at a step chosen at random. What counts is the time until a step is done that was not
done before.

    python benchmarks/elastic.py [--rounds 3] [--kills 20]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import training
from executors import session
from pyspark.sql import DataFrame

from tfos_ml import KerasEstimator

AIM_OF_CHECKPOINTS = 0.97
AIM_OF_SECONDS = 10.0
STEPS, BATCH, EPOCHS = 40, 64, 3


def rate(df: DataFrame, directory: str, steps: int | None) -> float:
    """Rows a second of a fit with checkpoints after each epoch, and after so many steps."""
    estimator = KerasEstimator(
        model=training.make_model("cnn"),
        clusterSize=2,
        epochs=training.EPOCHS,
        batchSize=training.BATCH,
        nodeEnv=training.ONE_THREAD,
        modelDir=directory,
        checkpointSteps=steps,
        verbose=0,
    )
    summary = estimator.fit(df).summary
    return training.steady_rate(summary.rows, summary.epochSeconds)


def checkpoints(rounds: int) -> None:
    """Print the rates with and without checkpoints within an epoch."""
    spark = session()
    df = training.frame(spark, training.ROWS["cnn"])
    with tempfile.TemporaryDirectory() as directory:
        training.compare(
            f"cnn, {training.ROWS['cnn']:,} rows an epoch, two workers, {rounds} rounds, medians:",
            {
                "after epochs": lambda: rate(df, tempfile.mkdtemp(dir=directory), None),
                "after 50 steps": lambda: rate(df, tempfile.mkdtemp(dir=directory), 50),
            },
            {"after 50 steps": [("after epochs", AIM_OF_CHECKPOINTS)]},
            rounds,
        )
    spark.stop()


def network():
    """A small network."""
    import keras

    model = keras.Sequential([keras.layers.Input((784,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def killing(directory: str, step: int, workers: list[int]):
    """A callback that kills workers after a step, and notes when, and when a later step is done."""
    import keras

    class Kills(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
            done, killed = int(self.model.optimizer.iterations), Path(directory, f"killed-{worker}")
            if done > step and any(Path(directory).glob("killed-*")):
                after = Path(directory, "after")
                if not after.exists():
                    after.write_text(str(time.time()))
            elif done == step and worker in workers and not killed.exists():
                killed.write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)

    return Kills()


def faults(kills: int) -> None:
    """Print how long it takes until a fit goes on."""
    spark = session(executors=3)
    df = training.frame(spark, STEPS * BATCH)
    for lost in (1, 3):
        seconds = recovery(df, kills, lost)
        print(
            f"\n{kills} times {lost} of 3 nodes killed: seconds until a new step was done: median "
            f"{statistics.median(seconds):.1f}, worst {max(seconds):.1f}, aim {AIM_OF_SECONDS:g}"
        )
    spark.stop()


def recovery(df: DataFrame, kills: int, lost: int) -> list[float]:
    """Seconds from each fault, in which so many nodes are lost, to a new step."""
    chosen, seconds = random.Random(lost), []
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as directory:
            KerasEstimator(
                model=network,
                callbacks=[killing(directory, chosen.randrange(10, EPOCHS * STEPS - 5), chosen.sample(range(3), lost))],
                clusterSize=3,
                minClusterSize=1,
                epochs=EPOCHS,
                batchSize=BATCH,
                modelDir=f"{directory}/model",
                checkpointSteps=10,
                verbose=0,
            ).fit(df)
            killed = [float(path.read_text()) for path in Path(directory).glob("killed-*")]
            seconds.append(float(Path(directory, "after").read_text()) - min(killed))
    return seconds


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    checkpoints(arguments.rounds)
    faults(arguments.kills)


if __name__ == "__main__":
    main()
