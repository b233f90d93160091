"""Train a digit classifier with a training loop of your own; run it by hand, beside ``digits.py``.

The 1,797 handwritten digits of scikit-learn (8 x 8 pixels) go through a Spark ML pipeline whose
last stage is a TFEstimator. Its train function is plain TensorFlow: a Keras model and a custom
training loop under MultiWorkerMirroredStrategy, run on every worker.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors run this very interpreter
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # all of the demo stays on this machine
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator
from pyspark.ml import Pipeline
from pyspark.ml.feature import MinMaxScaler, VectorAssembler
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from sklearn.datasets import load_digits

from tfos_ml import TFEstimator


def train_fn(args, ctx):
    """Train on every worker in step with the others; the chief exports the model."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    keras.utils.set_random_seed(args.seed)
    with strategy.scope():
        model = keras.Sequential(
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
        optimizer = keras.optimizers.Adam(args.learning_rate)
        optimizer.build(model.trainable_variables)
    summed_loss = keras.losses.SparseCategoricalCrossentropy(reduction="sum")

    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            probabilities = model(images, training=True)
            loss = summed_loss(labels, probabilities)
        hits = tf.math.count_nonzero(tf.argmax(probabilities, axis=1) == labels, dtype=tf.float32)
        rows = tf.cast(tf.shape(images)[0], tf.float32)
        sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, [loss, hits, rows])
        gradients = tape.gradient(loss, model.trainable_variables)
        # Keras sums gradients over the workers; divided by all rows of the step, that is their mean.
        optimizer.apply([g / sums[2] for g in gradients], model.trainable_variables)
        return tf.stack(sums)

    dataset = ctx.dataset()  # as many batches on every worker, shuffled anew each pass

    # One signature for batches of every size: all workers have to trace their collectives alike.
    @tf.function(input_signature=dataset.element_spec)
    def train_step(images, labels):
        return strategy.run(replica_step, args=(images, labels))

    for epoch in range(ctx.epochs):
        loss, hits, rows = sum(train_step(images, labels) for images, labels in dataset)
        ctx.report({"loss": loss / rows, "accuracy": hits / rows}, epoch=epoch)
    ctx.export_saved_model(model)


def start_spark():
    """A quiet Spark session with two task slots, one for each worker."""
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    return SparkSession.builder.master("local[2]").appName("digits").config(map=quiet).getOrCreate()


def load_data(spark):
    """The digits, 64 pixel columns and a label, as training and held-out rows."""
    digits = load_digits(as_frame=True).frame.rename(columns={"target": "label"})
    return spark.createDataFrame(digits).randomSplit([0.8, 0.2], seed=7)


def make_pipeline(pixel_columns):
    """Two feature stages of Spark, then TensorFlow."""
    return Pipeline(
        stages=[
            VectorAssembler(inputCols=pixel_columns, outputCol="pixels"),
            MinMaxScaler(inputCol="pixels", outputCol="features"),
            TFEstimator(
                trainFn=train_fn,
                tfArgs={"learning_rate": 0.003},
                clusterSize=2,
                epochs=15,
                batchSize=64,
                seed=7,
                predictionCol="probabilities",
            ),
        ]
    )


def predict(model, rows):
    """Label, predicted digit and its probability of each row, in random order, as a pandas DataFrame."""
    probability = F.array_max("probabilities")
    digit = F.array_position("probabilities", probability) - 1
    scored = model.transform(rows).select("label", digit.alias("digit"), probability.alias("probability"), "pixels")
    return scored.toPandas().sample(frac=1, random_state=7, ignore_index=True)


def plot_history(history, accuracy, path):
    """Loss and accuracy by epoch."""
    epochs = range(1, len(history["loss"]) + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(epochs, history["loss"], marker="o", label="training rows")
    left.set(title="Loss", xlabel="epoch", ylabel="cross-entropy", ylim=(0, None))
    right.plot(epochs, history["accuracy"], marker="o", label="training rows")
    right.axhline(accuracy, color="tab:green", linestyle="--", label=f"held-out rows, at the end: {accuracy:.3f}")
    right.set(title="Accuracy", xlabel="epoch", ylabel="share of digits recognised", ylim=(None, 1.01))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
    figure.savefig(path, dpi=120)


def plot_digits(predictions, path, rows=4, columns=8):
    """Some held-out digits with what the model took them for; mistakes come first, in red."""
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
    print(f"Training on {training.count():,} digits with 2 TensorFlow workers, one in each Spark task.")
    model = make_pipeline(pixel_columns).fit(training)

    predictions = predict(model, held_out)
    accuracy = (predictions.label == predictions.digit).mean()
    print(predictions[["label", "digit", "probability"]].head(8).to_string(index=False, float_format="{:.3f}".format))
    print(f"Accuracy on {len(predictions)} held-out digits: {accuracy:.3f}")

    plot_history(model.stages[-1].history, accuracy, output / "training.png")
    plot_digits(predictions, output / "digits.png")
    spark.stop()
    print(
        f"Done in {time.monotonic() - start:.0f} s. Pictures: {output}/training.png and {output}/digits.png. "
        "Next: change the model in examples/digits_custom_loop.py, or open notebooks/01_quickstart.ipynb."
    )


if __name__ == "__main__":
    main()
