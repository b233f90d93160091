"""KerasEstimator: what comes out is what plain Keras gives, on any number of workers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pyspark.ml.evaluation import BinaryClassificationEvaluator, RegressionEvaluator
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, TFModel, errors

BATCH, EPOCHS, ROWS = 64, 3, 1003


pytestmark = pytest.mark.usefixtures("keras")


def regression_rows():
    random = np.random.RandomState(3)
    x = random.randn(ROWS, 13).astype("f")
    y = (x @ random.randn(13) + 0.1 * random.randn(ROWS)).astype("f")
    return pd.DataFrame(
        {
            "features": x.tolist(),
            "label": y,
            "weight": random.uniform(0.2, 2, ROWS),
            "held_out": np.arange(ROWS) % 7 == 3,
        }
    )


def as_frame(spark, rows):
    df = spark.createDataFrame(rows).withColumn("features", F.col("features").cast("array<float>"))
    return df.coalesce(2)  # each partition's Python worker loads TensorFlow in transform


def regression_model():
    import keras

    keras.utils.set_random_seed(1)
    hidden = keras.layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3))
    model = keras.Sequential([keras.layers.Input((13,)), hidden, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], weighted_metrics=["mae"])
    return model


def plain_keras(model, rows):
    """Fit in place on the same rows in the same order; returns the history."""
    x, held_out = np.stack(rows.features.to_numpy()).astype("f"), rows.held_out.to_numpy()
    y, w = rows.label.to_numpy(), rows.weight.to_numpy().astype("f")
    return model.fit(
        x[~held_out],
        y[~held_out],
        sample_weight=w[~held_out],
        validation_data=(x[held_out], y[held_out], w[held_out]),
        epochs=EPOCHS,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
    ).history


def estimator(model, **params):
    fixed = {"batchSize": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    return KerasEstimator(model=model, **{**fixed, **params})


@pytest.mark.corner("KerasEstimator ends like plain Keras")
def test_two_workers_end_like_plain_keras(spark):
    """One and three do in ``unit/test_exactness.py``."""
    rows = regression_rows()
    df = as_frame(spark, rows)
    reference = regression_model()
    history = plain_keras(reference, rows)
    expected = reference.predict(np.stack(rows.features.to_numpy()).astype("f"), verbose=0)[:, 0]
    job = {"weightCol": "weight", "validationIndicatorCol": "held_out", "clusterSize": 2}
    model = estimator(regression_model(), **job).fit(df)
    found = [row.prediction for row in model.transform(df).collect()]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert set(model.summary.history) == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(model.summary.history[name], values, rtol=1e-5, err_msg=name)
    summary, scored = model.summary, model.transform(df)
    assert (summary.rows, summary.validationRows) == ((~rows.held_out).sum(), rows.held_out.sum())
    assert summary.steps == EPOCHS * -(-summary.rows // BATCH)
    assert list(summary.timeline)[-4:] == ["tracing", "training", "export", "return"]
    assert 0.01 < summary.timeline["tracing"] < sum(summary.epochSeconds)
    assert dict(scored.dtypes)["prediction"] == "double"
    assert RegressionEvaluator(labelCol="label").evaluate(scored) < 1.0


def test_flat_images_are_labels_of_images_and_their_weights_those_of_pixels(spark, keras):
    random = np.random.RandomState(4)
    x, w = random.rand(41, 2, 3, 1).astype("f"), random.rand(41, 2, 3).astype("f")
    model = keras.Sequential([keras.layers.Input((2, 3, 1)), keras.layers.Conv2D(1, 2, padding="same")])
    model.compile("sgd", "mse")
    df = spark.createDataFrame(
        [(a.ravel().tolist(), b.ravel().tolist()) for a, b in zip(x, w, strict=True)], ["x", "w"]
    )
    columns = {"featuresCol": "x", "labelCol": "x", "weightCol": "w"}
    found = estimator(model, clusterSize=2, **columns).fit(df).summary.history["loss"]
    history = model.fit(x, x, sample_weight=w, epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0).history
    np.testing.assert_allclose(found, history["loss"], rtol=1e-5)


def test_wide_vectors_of_words_with_dense_ones_between_them(spark, keras, tmp_path):
    width, random = 9000, np.random.RandomState(4)
    vectors = [Vectors.sparse(width, sorted(random.choice(width, 20, False)), random.rand(20)) for _ in range(41)]
    vectors[7] = Vectors.dense(random.rand(width))
    df = spark.createDataFrame([(v, i % 2) for i, v in enumerate(vectors)], ["features", "label"]).coalesce(1)
    model = keras.Sequential([keras.layers.Input((width,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy")
    fits = [estimator(model, clusterSize=2, **cache).fit(df) for cache in ({}, {"cacheDir": str(tmp_path)})]
    x, y = np.array([v.toArray() for v in vectors], "f"), np.arange(41) % 2
    history = model.fit(x, y, epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0).history
    np.testing.assert_allclose([fitted.summary.history["loss"] for fitted in fits], [history["loss"]] * 2, rtol=1e-5)


def binary_model(rate=0.05):
    import keras

    keras.utils.set_random_seed(5)
    layers = [keras.layers.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy")
    return model


def test_class_weights_threshold_and_warm_start(spark, tmp_path):
    random = np.random.RandomState(2)
    x = random.randn(300, 3).astype("f")
    label = (x[:, 0] + 0.2 * random.randn(300) > 0.8).astype(float)
    df = as_frame(spark, pd.DataFrame({"features": x.tolist(), "label": label}))
    reference = binary_model()
    reference.fit(x, label, class_weight={0: 1.0, 1: 4.0}, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    exported = str(tmp_path / "export")
    first = estimator(binary_model, epochs=2, classWeight={1: 4.0}, threshold=0.7, exportDir=exported)
    fitted = first.fit(df)
    scored = fitted.transform(df).toPandas()
    probability = np.stack([v.toArray() for v in scored.probability])
    np.testing.assert_allclose(probability[:, 1], reference.predict(x, verbose=0)[:, 0], atol=1e-5)
    np.testing.assert_allclose(probability.sum(1), 1)
    assert (scored.prediction == (probability[:, 1] > 0.7)).all()
    assert BinaryClassificationEvaluator().evaluate(fitted.transform(df)) > 0.8

    alike = binary_model()
    alike.load_weights(f"{exported}/assets.extra/model.weights.h5")  # warnings are errors
    np.testing.assert_allclose(alike.predict(x, verbose=0)[:, 0], probability[:, 1], atol=1e-6)

    # A model that starts from the first one's weights and does not train keeps them.
    still = estimator(binary_model, modelArgs={"rate": 0.0}, initialWeights=exported, epochs=1).fit(df)
    again = np.stack([v.toArray() for v in still.transform(df).toPandas().probability])
    np.testing.assert_allclose(again, probability, atol=1e-7)
    loaded = TFModel(exportDir=exported, rawPredictionCol="").transform(df)
    assert loaded.columns == ["features", "label", "probability", "prediction"]


ODD_NAMES = ["class", "self", "a b", "a_b", "od280/od315_of_diluted_wines", "1st", "größe", "_c0", "a.b", "a`b"]


def model_of_odd_names():
    """Subclassed: Keras' own names of inputs may not have slashes."""
    import keras

    class Sum(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, inputs):
            return {"größe (cm)": self.dense(keras.ops.stack([inputs[name] for name in ODD_NAMES], axis=1))}

    model = Sum()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def test_names_are_data(spark, tmp_path):
    """Of inputs, outputs and columns, in training and scoring; and a join leaves two columns of one name."""
    import mlflow.pyfunc

    import tfos_ml.mlflow

    values = {name: float(1 << i) for i, name in enumerate(ODD_NAMES)}
    columns = [F.lit(value).cast("float").alias(name) for name, value in values.items()]
    left = spark.range(8).select("id", *columns, F.struct((F.col("id") > 5).alias("is_val")).alias("meta"))
    right = spark.range(8).select("id", F.lit(0.0).alias("y"))
    df = left.join(right, left.id == right.id)
    params = {
        "inputMapping": {name: name for name in ODD_NAMES},
        "labelMapping": {"y": "größe (cm)"},
        "outputMapping": {"größe (cm)": "größe (cm)"},
        "validationIndicatorCol": "meta.is_val",
    }
    fitted = estimator(model_of_odd_names, clusterSize=1, epochs=1, **params).fit(df)
    assert (fitted.summary.rows, fitted.summary.validationRows) == (6, 2)
    scored = fitted.transform(df)
    assert scored.columns == [*df.columns, "größe (cm)"]
    total = sum(values.values())
    assert {row[-1][0] for row in scored.collect()} == {total}
    assert fitted.predict({name: [value] for name, value in values.items()})["größe (cm)"].tolist() == [[total]]
    tfos_ml.mlflow.save_model(fitted, str(tmp_path / "model"))
    served = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    inputs = df.select([f"`{name.replace('`', '``')}`" for name in ODD_NAMES]).toPandas()
    assert served.predict(inputs)["größe (cm)"][0] == [total]


def test_a_function_may_make_another_model_in_a_later_fit(spark, tmp_path):
    """It reads a file, which has changed."""
    file = str(tmp_path / "classes")

    def model():
        import keras

        with open(file) as classes:
            layers = [keras.layers.Input((1,)), keras.layers.Dense(int(classes.read()), activation="softmax")]
        made = keras.Sequential(layers)
        made.compile("sgd", "sparse_categorical_crossentropy")
        return made

    for classes in (2, 3):
        (tmp_path / "classes").write_text(str(classes))
        df = spark.range(12).select(F.col("id").cast("float").alias("features"), (F.col("id") % classes).alias("label"))
        assert estimator(model, clusterSize=1, epochs=1).fit(df).predict([[1.0]])["probability"].shape == (1, classes)


def generator_of_images():
    """A model without ``call``, as examples of autoencoders and of adversarial networks are."""
    import keras
    import tensorflow as tf

    class Generator(keras.Model):
        def __init__(self):
            super().__init__()
            self.decoder = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16, kernel_initializer="zeros")])
            self.mean_loss = keras.metrics.Mean(name="loss")

        def train_step(self, data):
            x = tf.nest.flatten(data)[0]
            with tf.GradientTape() as tape:
                loss = self.loss(x, self.decoder(x))
            self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            self.mean_loss.update_state(loss)
            return {"loss": self.mean_loss.result()}

    model = Generator()
    model.compile(keras.optimizers.SGD(0.5), keras.losses.MeanSquaredError())  # for the step alone: there is no label
    return model


def test_a_model_without_call_is_trained_and_its_weights_are_kept(spark, tmp_path):
    df = spark.range(8).select(F.array_repeat(F.lit(0.5).cast("float"), 16).alias("features"))
    destination = str(tmp_path / "published")
    training = estimator(generator_of_images, clusterSize=2, epochs=1, batchSize=8, exportDir=destination)
    with pytest.warns(errors.NothingExportedWarning, match=r"cannot be exported: it has no call\(\)"):
        fitted = training.fit(df)
    assert fitted.summary.history["loss"] == [pytest.approx(0.25)]
    with pytest.raises(errors.NothingExportedError, match="weights are saved"):
        fitted.transform(df)
    plain = generator_of_images()
    plain.built = True
    plain.load_weights(f"{destination}/assets.extra/model.weights.h5")
    np.testing.assert_allclose(plain.decoder.get_weights()[1], 0.5 / 16, rtol=1e-5)
