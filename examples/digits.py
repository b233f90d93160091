"""Train a digit classifier on a Spark DataFrame with two TensorFlow workers; ``make demo`` runs this.

The 1,797 handwritten digits of scikit-learn (8 x 8 pixels) go through a Spark ML pipeline. Its last stage is a
KerasEstimator, which trains a compiled Keras model. Its predictions are columns that the evaluators of Spark ML read.
"""

import argparse
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors use the same interpreter
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the demo uses this machine only

warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)  # all of this works

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import MinMaxScaler, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from sklearn.datasets import load_digits

from tfos_ml import KerasEstimator


def make_network():
    """A small convolutional network, compiled as for Keras alone; called on the nodes."""
    import keras

    keras.utils.set_random_seed(7)
    network = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    network.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return network


def start_spark():
    """A quiet Spark session with two task slots, one for each worker."""
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    return SparkSession.builder.master("local[2]").appName("digits").config(map=quiet).getOrCreate()


def load_data(spark):
    """The digits, 64 pixel columns and a label, as training and held-out rows."""
    digits = load_digits(as_frame=True).frame.rename(columns={"target": "label"})
    return spark.createDataFrame(digits).randomSplit([0.8, 0.2], seed=7)


def make_pipeline(pixel_columns):
    """Two feature stages of Spark, then Keras."""
    return Pipeline(
        stages=[
            VectorAssembler(inputCols=pixel_columns, outputCol="pixels"),
            MinMaxScaler(inputCol="pixels", outputCol="features"),
            KerasEstimator(
                model=make_network,
                clusterSize=2,
                epochs=15,
                batchSize=64,
                validationSplit=0.1,
                seed=7,
            ),
        ]
    )


def sample(scored):
    """Label, predicted digit and its probability of each row, in random order, as a pandas DataFrame."""
    probability = F.array_max(vector_to_array("probability")).alias("probability")
    columns = scored.select("label", F.col("prediction").cast("int").alias("digit"), probability, "pixels")
    return columns.toPandas().sample(frac=1, random_state=7, ignore_index=True)


def plot_history(history, accuracy, path):
    """Loss and accuracy by epoch."""
    epochs = range(1, len(history["loss"]) + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axes, name in ((left, "loss"), (right, "accuracy")):
        axes.plot(epochs, history[name], marker="o", label="training rows")
        axes.plot(epochs, history[f"val_{name}"], marker="s", label="validation rows")
    left.set(title="Loss", xlabel="epoch", ylabel="cross-entropy", ylim=(0, None))
    right.axhline(accuracy, color="tab:green", linestyle="--", label=f"held-out rows, at the end: {accuracy:.3f}")
    right.set(title="Accuracy", xlabel="epoch", ylabel="share of correct digits", ylim=(None, 1.01))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
    figure.savefig(path, dpi=120)


def plot_digits(predictions, path, rows=4, columns=8):
    """Some held-out digits with their predictions; mistakes come first, in red."""
    wrong_first = predictions.assign(right=predictions.label == predictions.digit).sort_values("right", kind="stable")
    figure, grid = plt.subplots(rows, columns, figsize=(1.4 * columns, 1.9 * rows), layout="constrained")
    for axes, row in zip(grid.flat, wrong_first.itertuples(), strict=False):
        axes.imshow(row.pixels.toArray().reshape(8, 8), cmap="gray_r")
        title = f"predicted {row.digit} ({row.probability:.2f})\ntrue {row.label}"
        axes.set_title(title, color="black" if row.right else "red", fontsize=9)
        axes.set(xticks=[], yticks=[])
    figure.suptitle("Held-out digits: predicted (with its probability) and true; mistakes come first, in red\n")
    figure.savefig(path, dpi=120)


def main():
    """Load, train, predict, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="directory of the pictures")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()

    spark = start_spark()
    training, held_out = load_data(spark)
    pixel_columns = [name for name in training.columns if name != "label"]
    print(f"Training on {training.count():,} digits with 2 Keras workers, one in each Spark task.")
    model = make_pipeline(pixel_columns).fit(training)

    scored = model.transform(held_out).cache()
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(scored)
    predictions = sample(scored)
    print(predictions[["label", "digit", "probability"]].head(8).to_string(index=False, float_format="{:.3f}".format))
    print(f"Accuracy on {len(predictions)} held-out digits: {accuracy:.3f}")

    plot_history(model.stages[-1].summary.history, accuracy, output / "training.png")
    plot_digits(predictions, output / "digits.png")
    spark.stop()
    print(
        f"Done in {time.monotonic() - start:.0f} s. Pictures: {output}/training.png and {output}/digits.png. "
        "Next: change the network in examples/digits.py, or open notebooks/01_quickstart.ipynb."
    )


if __name__ == "__main__":
    main()
