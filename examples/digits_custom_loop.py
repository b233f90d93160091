"""Train the digits of ``digits.py`` with a custom training loop: TFEstimator instead of KerasEstimator.

Every worker runs the train function: a Keras model under MultiWorkerMirroredStrategy, and a loop in plain TensorFlow.

    python examples/digits_custom_loop.py
"""

from digits import load_data, start_spark
from pyspark.ml import Pipeline
from pyspark.ml.feature import MinMaxScaler, VectorAssembler
from pyspark.sql import functions as F

from tfos_ml import TFEstimator


def train_fn(args, ctx):
    """Train in step with the other workers; the chief exports the model."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any other call of TensorFlow
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
        # Keras sums the gradients of the workers. Divide by all rows of the step for the mean.
        optimizer.apply([g / sums[2] for g in gradients], model.trainable_variables)
        return tf.stack(sums)

    dataset = ctx.dataset()  # the same number of batches on every worker, shuffled in each epoch

    # One signature for batches of every size, so that all workers trace their collectives equally often.
    @tf.function(input_signature=dataset.element_spec)
    def train_step(images, labels):
        return strategy.run(replica_step, args=(images, labels))

    for epoch in range(ctx.epochs):
        loss, hits, rows = sum(train_step(images, labels) for images, labels in dataset)
        ctx.report({"loss": loss / rows, "accuracy": hits / rows}, epoch=epoch)
    ctx.export_saved_model(model)


def main():
    """Load, train, predict."""
    spark = start_spark()
    training, held_out = load_data(spark)
    stages = [
        VectorAssembler(inputCols=[name for name in training.columns if name != "label"], outputCol="pixels"),
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
    model = Pipeline(stages=stages).fit(training)
    digit = F.array_position("probabilities", F.array_max("probabilities")) - 1
    accuracy = model.transform(held_out).select(F.avg((digit == F.col("label")).cast("double"))).first()[0]
    print(f"Accuracy on {held_out.count()} held-out digits: {accuracy:.3f}")
    spark.stop()


if __name__ == "__main__":
    main()
