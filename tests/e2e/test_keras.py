"""KerasEstimator: what comes out is what plain Keras gives, on any number of workers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from conftest import CLUSTER, LOCAL
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, TFModel, errors

BATCH, EPOCHS, ROWS = 64, 3, 1003


@pytest.fixture(scope="module", autouse=True)
def keras():
    """Keras on the driver; it changes the environment when it is imported, which is not ours to undo."""
    import keras

    return keras


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
    model = keras.Sequential(
        [
            keras.layers.Input((13,)),
            keras.layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3)),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], weighted_metrics=["mae"])
    return model


def plain_keras(model, rows, epochs=EPOCHS):
    """Fit in place on the same rows in the same order; returns the history."""
    x, held_out = np.stack(rows.features.to_numpy()).astype("f"), rows.held_out.to_numpy()
    y, w = rows.label.to_numpy(), rows.weight.to_numpy().astype("f")
    return model.fit(
        x[~held_out],
        y[~held_out],
        sample_weight=w[~held_out],
        validation_data=(x[held_out], y[held_out], w[held_out]),
        epochs=epochs,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
    ).history


def estimator(model, **params):
    fixed = {"batchSize": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    return KerasEstimator(model=model, **{**fixed, **params})


def weighted(model, **params):
    return estimator(model, weightCol="weight", validationIndicatorCol="held_out", **params)


def predictions(model, df, column="prediction"):
    return np.array([row[0] for row in model.transform(df).select(column).collect()])


@pytest.mark.corner("KerasEstimator ends like plain Keras")
@pytest.mark.parametrize(
    ("master", "size", "chief"),
    [
        pytest.param(LOCAL, 2, None, id="local"),
        pytest.param(CLUSTER, 3, "chief", id="several_executors", marks=pytest.mark.chaos),
    ],
)
def test_any_cluster_ends_like_plain_keras(sessions, master, size, chief):
    spark, rows = sessions.get(master), regression_rows()
    df = as_frame(spark, rows)
    reference = regression_model()
    history = plain_keras(reference, rows)
    expected = reference.predict(np.stack(rows.features.to_numpy()).astype("f"), verbose=0)[:, 0]
    job = weighted(regression_model(), clusterSize=size)
    if chief:
        job.setMasterNode(chief)
    model = job.fit(df)
    np.testing.assert_allclose(predictions(model, df), expected, atol=1e-5)
    assert set(model.summary.history) == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(model.summary.history[name], values, rtol=1e-5, err_msg=f"{name}, {size} workers")
    assert model.summary.rows == (~rows.held_out).sum()
    assert model.summary.validationRows == rows.held_out.sum()
    assert model.summary.steps == EPOCHS * -(-model.summary.rows // BATCH)
    assert len(model.summary.epochSeconds) == EPOCHS
    timeline = model.summary.timeline
    assert list(timeline)[-4:] == ["tracing", "training", "export", "return"]
    assert 0.01 < timeline["tracing"] < sum(model.summary.epochSeconds)
    assert all(node["rows_per_second"] > 0 for node in model.summary.nodes)
    scored = model.transform(df)
    assert dict(scored.dtypes)["prediction"] == "double"
    assert RegressionEvaluator(labelCol="label").evaluate(scored) < 1.0


def binary_frame(spark):
    random = np.random.RandomState(2)
    x = random.randn(300, 3).astype("f")
    label = (x[:, 0] + 0.2 * random.randn(300) > 0.8).astype(float)
    return x, label, as_frame(spark, pd.DataFrame({"features": x.tolist(), "label": label}))


def binary_model(rate=0.05, units=4):
    import keras

    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy")
    return model


def test_class_weights_threshold_and_warm_start(spark, tmp_path):
    x, label, df = binary_frame(spark)
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


@pytest.mark.chaos
def test_model_checkpoint_on_the_chief_is_plain_keras(spark, keras, tmp_path):
    path = str(tmp_path / "{epoch}.keras")
    callbacks = [
        keras.callbacks.ModelCheckpoint(path),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1),
    ]
    fitted = weighted(regression_model(), clusterSize=2, epochs=9, callbacks=callbacks).fit(
        as_frame(spark, regression_rows())
    )
    assert len(fitted.summary.history["loss"]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.keras", "2.keras", "log.csv"]
    assert list(pd.read_csv(tmp_path / "log.csv").loss.round(5)) == [
        round(v, 5) for v in fitted.summary.history["loss"]
    ]
    saved = keras.saving.load_model(tmp_path / "2.keras")
    assert type(saved.optimizer) is keras.optimizers.Adam
    rows = regression_rows()
    expected = saved.predict(np.stack(rows.features).astype("f"), verbose=0)[:, 0]
    np.testing.assert_allclose(predictions(fitted, as_frame(spark, rows)), expected, atol=1e-5)


def text_model():
    import keras

    keras.utils.set_random_seed(1)
    text = keras.layers.Input((), dtype="string", name="text")
    length = keras.layers.Input((1,), name="length")
    words = keras.layers.TextVectorization(max_tokens=50, output_mode="multi_hot", pad_to_max_tokens=True, name="words")
    hidden = keras.layers.Concatenate()([words(text), keras.layers.Normalization(name="scale")(length)])
    model = keras.Model([text, length], keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.corner("KerasEstimator with preprocessing layers, text and classes")
@pytest.mark.chaos
def test_raw_strings_in_classes_out(spark, tmp_path):
    words = ["good", "bad", "fine", "poor", "tea", "bread", "with", "über"]
    random = np.random.RandomState(0)
    texts = [" ".join(random.choice(words, 4)) for _ in range(300)]
    rows = pd.DataFrame({"text": texts, "length": [float(len(t)) for t in texts]})
    rows["label"] = [float("good" in t or "fine" in t) for t in texts]
    df = spark.createDataFrame(rows)
    mapping = {"text": "text", "length": "length"}
    with pytest.raises(errors.ModelError, match=r"\['words'\] have not been adapted. Set adaptLayers="):
        estimator(text_model, inputMapping=mapping).fit(df)
    export, saved = str(tmp_path / "export"), str(tmp_path / "saved")
    fitted = estimator(
        text_model,
        inputMapping=mapping,
        adaptLayers=["words", "scale"],
        adaptRows=250,
        clusterSize=2,
        epochs=15,
        exportDir=export,
    ).fit(df)
    fitted.save(saved)
    loaded = TFModel.load(saved)
    scored = loaded.transform(df)
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(scored) > 0.95
    published = TFModel(exportDir=export, inputMapping=mapping).transform(df)
    assert published.select("prediction").collect() == scored.select("prediction").collect()
    unseen = spark.createDataFrame([("something good", 14.0), ("zebra bad", 9.0)], ["text", "length"])
    assert [row.prediction for row in loaded.transform(unseen).collect()] == [1.0, 0.0]


ODD_NAMES = ["class", "self", "a b", "a_b", "sepal length (cm)", "od280/od315_of_diluted_wines", "1st", "größe", "_c0"]
ODD_NAMES += ["a.b", "a`b"]


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
    assert served.predict(df.select([f"`{name.replace('`', '``')}`" for name in ODD_NAMES]).toPandas())["größe (cm)"][
        0
    ] == [total]


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


def test_settings_of_keras_travel_with_the_program_and_with_a_saved_estimator(spark, keras, tmp_path):
    def model():
        made = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])

        def is_bfloat16(y, p):
            return float(made.layers[0].compute_dtype == "bfloat16")

        def epsilon(y, p):
            return keras.config.epsilon()

        made.compile("sgd", "mse", metrics=[is_bfloat16, epsilon])
        return made

    before = keras.config.dtype_policy(), keras.config.epsilon()
    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.config.set_epsilon(0.25)
    try:
        estimator(model, clusterSize=1, epochs=1).save(str(tmp_path / "estimator"))
    finally:
        keras.config.set_dtype_policy(before[0])
        keras.config.set_epsilon(before[1])
    df = spark.createDataFrame([([1.0], 1.0)], "features array<float>, label float")
    history = KerasEstimator.load(str(tmp_path / "estimator")).fit(df).summary.history
    assert (history["is_bfloat16"], history["epsilon"]) == ([1.0], [0.25])
    assert (keras.config.dtype_policy(), keras.config.epsilon()) == before


def generator_of_images():
    """A model without ``call``, as examples of autoencoders and of adversarial networks are."""
    import keras
    import tensorflow as tf

    class Generator(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = keras.Sequential([keras.Input((16,)), keras.layers.Dense(2)])
            self.decoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(16, kernel_initializer="zeros")])
            self.mean_loss = keras.metrics.Mean(name="loss")

        def train_step(self, data):
            x = tf.nest.flatten(data)[0]
            with tf.GradientTape() as tape:
                loss = self.loss(x, self.decoder(self.encoder(x)))
            weights = self.trainable_weights
            self.optimizer.apply(tape.gradient(loss, weights), weights)
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
