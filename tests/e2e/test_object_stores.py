"""Directories in an object store, over the API of S3: they are whole or not there, and secrets stay secret."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import jobs_of
from object_store import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, TFModel, errors, tfrecord

ROWS = 300


pytestmark = pytest.mark.usefixtures("keras")


@pytest.fixture(scope="module")
def server():
    server = ObjectStore()
    yield server
    server.close()


@pytest.fixture
def store(server):
    server.heal()
    yield server
    server.heal()


@pytest.fixture
def spark(spark, server):
    """A session whose settings for s3a:// are those of the store, as if they had come with spark.hadoop.* ones."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    settings = {"endpoint": server.endpoint, "endpoint.region": "us-east-1"}
    settings |= {"access.key": ACCESS_KEY, "secret.key": SECRET_KEY}
    for name, value in settings.items():
        hadoop.set(f"fs.s3a.{name}", value)
    yield spark
    for name in settings:
        hadoop.unset(f"fs.s3a.{name}")


@pytest.fixture(autouse=True)
def no_secret_is_shown(capfd, caplog):
    """Nothing that is printed or logged, by nodes neither, tells the keys."""
    yield
    printed = capfd.readouterr()
    for text in (printed.out, printed.err, caplog.text):
        assert_no_secret(text)


def assert_no_secret(*things):
    for thing in things:
        for text in (str(thing), repr(thing)):
            assert ACCESS_KEY not in text
            assert SECRET_KEY not in text
            assert "wJalr" not in text


def rows(spark):
    return spark.range(ROWS).select(
        F.array((F.col("id") / ROWS).cast("float"), (F.col("id") % 7).cast("float")).alias("features"),
        (F.col("id") % 2).cast("float").alias("label"),
    )


def model():
    import keras

    keras.utils.set_random_seed(1)
    network = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    network.compile(keras.optimizers.Adam(0.01), "mse")
    return network


def estimator(**params):
    return KerasEstimator(model=model, **{"batchSize": 50, "epochs": 2, "verbose": 0, **params})


def predictions(fitted, df):
    return np.array([row.prediction for row in fitted.transform(df).select("prediction").collect()])


@pytest.mark.chaos
def test_a_snapshot_in_the_store_is_read_by_the_nodes(spark, store, tmp_path):
    df, local = rows(spark), tmp_path / "cache"  # pip's Spark has no connector to write to the store with
    fed = estimator(seed=1, cacheDir=str(local)).fit(df)
    for path in (path for path in local.rglob("*") if path.is_file()):
        with store.files.open_output_stream(f"{BUCKET}/cached/{path.relative_to(local)}") as stream:
            stream.write(path.read_bytes())
    read = estimator(seed=1, cacheDir="s3a://bucket/cached")
    fitted = read.fit(df)
    assert fitted.summary.history == fed.summary.history
    assert not fitted.summary.snapshot["is_new"]
    store.fail(lambda method, path: method == "GET" and "part-00007" in path, 403)
    with pytest.raises(errors.FileReadError, match="Make sure that all nodes can reach cacheDir") as caught:
        read.fit(df)
    assert_no_secret(caught.value)


def test_a_fit_keeps_everything_in_the_store(spark, store):
    df = rows(spark)
    places = {"modelDir": "s3a://bucket/all/state", "logDir": "s3://bucket/all/logs"}
    first = estimator(exportDir="s3://bucket/all/export", **places, verbose=2)
    fitted = first.fit(df)
    loaded = TFModel(exportDir="s3a://bucket/all/export")
    np.testing.assert_array_equal(predictions(loaded, df), predictions(fitted, df))
    assert store.names("all/export").count("saved_model.pb") == 1
    state = store.names("all/state/tfos_ml")
    assert sum(name.endswith("state.json") for name in state) == 2
    assert not [name for name in [*state, *store.names("all/export")] if "partial" in name or "preflight" in name]
    assert any("events.out" in name for name in store.names("all/logs"))
    assert store.keys == {ACCESS_KEY}

    # A checkpoint that cannot be read is not passed over, and one that cannot be written does not count.
    second = estimator(epochs=4, exportDir="s3a://bucket/all/second", **places)
    store.fail(lambda method, path: method == "GET" and path.endswith("/state.json"), 403)
    with pytest.raises(errors.ModelDirError, match="cannot be taken over") as caught:
        second.fit(df)
    assert_no_secret(caught.value)
    store.fail(lambda method, path: method in ("PUT", "POST") and "state/tfos_ml/epoch-00004" in path, 503)
    with pytest.raises(errors.ModelDirError, match="cannot be written: .*credentials") as caught:
        second.fit(df)
    assert_no_secret(caught.value, caught.value.__dict__)
    store.heal()
    with pytest.warns(UserWarning, match="Training continued from a checkpoint in modelDir='s3a:.*, after epoch 3"):
        resumed = second.fit(df)
    assert resumed.summary.history["loss"][:2] == fitted.summary.history["loss"]
    assert resumed.summary.steps == ROWS // 50
    store.fail(lambda method, path: method in ("PUT", "POST") and "events.out" in path, 403)
    told = r"Event files could not be copied to logDir='s3://\*\*\*@bucket/lost"
    with pytest.warns(UserWarning, match=told) as caught:
        warm = estimator(initialWeights="s3a://bucket/all/second", logDir="s3a://bucket/lost", epochs=1).fit(df)
    assert_no_secret(*[warning.message for warning in caught])
    assert warm.summary.history["loss"][0] < fitted.summary.history["loss"][0]
    assert_no_secret(first, fitted, resumed, loaded, first.explainParams(), fitted.summary)


def test_a_place_that_cannot_be_written_is_told_before_any_job(spark, store):
    before = jobs_of(spark)
    for param, bucket in {"modelDir": "missing", "exportDir": "bucket"}.items():
        with pytest.raises(errors.DestinationError, match=f"^{param}='s3.*{bucket}/place.*credentials") as caught:
            estimator(**{param: f"s3a://{bucket}/place"}).fit(rows(spark))
        assert_no_secret(caught.value)
        store.fail(lambda method, path: method in ("PUT", "POST"), 403)
    assert jobs_of(spark) == before
    store.heal()
    assert store.names("place") == []


@pytest.mark.chaos
def test_an_export_that_is_refused_while_it_is_published(spark, store):
    """And what has been copied by then cannot be deleted either."""
    place = "published"
    copied = []

    def after_two(method, path):
        if method == "PUT" and path.startswith(f"/bucket/{place}/") and not path.endswith("/"):
            copied.append(path)
        return len(copied) > 2

    store.fail(after_two, 503)
    with pytest.raises(errors.DestinationError, match="The driver cannot publish to") as caught:
        estimator(exportDir=f"s3a://bucket/{place}").fit(rows(spark))
    store.heal()
    assert "saved_model.pb" not in store.names(place)
    assert_no_secret(caught.value)
    with pytest.raises(errors.ModelError) as caught:
        TFModel(exportDir=f"s3a://bucket/{place}").signature()
    assert_no_secret(caught.value)


def test_stages_are_saved_by_spark_which_says_what_it_lacks(spark, store):
    place = "s3a://bucket/stage"
    with pytest.raises(errors.DestinationError, match=f"{place} cannot be opened: .*hadoop-aws.*exportDir") as caught:
        estimator().save(place)
    with pytest.raises(errors.DestinationError, match="cannot be opened"):
        TFModel.load(place)
    assert_no_secret(caught.value)


def numbers(spark, count=1000):
    return spark.range(count).select("id", (F.col("id") % 3).alias("part"), F.col("id").cast("string").alias("text"))


@pytest.mark.chaos
def test_tfrecords_that_are_refused_are_not_taken_for_whole(spark, store):
    """Neither can what has been put to its place be deleted."""
    place = "records/refused"
    path, copied = f"s3a://bucket/{place}", []

    def after_one(method, request):
        if method == "PUT" and request.startswith(f"/bucket/{place}/part-"):
            copied.append(request)
        return len(copied) > 1

    store.fail(after_one, 503)
    with pytest.raises(errors.DestinationError, match="cannot be written.*credentials") as caught:
        tfrecord.save_as_tfrecords(numbers(spark).repartition(4), path)
    assert_no_secret(caught.value)
    store.heal()
    assert len([name for name in store.names(place) if name.startswith("part-")]) == 1
    with pytest.raises(errors.DataError, match="was interrupted.*mode 'overwrite'") as caught:
        tfrecord.load_tfrecords(spark, path)
    assert_no_secret(caught.value)
    tfrecord.save_as_tfrecords(numbers(spark, 7), path, mode="overwrite")
    assert tfrecord.load_tfrecords(spark, path).count() == 7


def test_tfrecords_that_tasks_cannot_write_or_read(spark, store):
    path = "s3a://bucket/records/tasks"
    store.fail(lambda method, request: method in ("PUT", "POST") and request.endswith(".tfrecord"), 403)
    with pytest.raises(errors.DestinationError, match="cannot be written.*credentials") as caught:
        tfrecord.save_as_tfrecords(numbers(spark), path)
    store.heal()
    assert store.names("records/tasks") == []
    tfrecord.save_as_tfrecords(numbers(spark), path)
    found = tfrecord.load_tfrecords(spark, path)
    store.fail(lambda method, request: method == "GET" and request.endswith(".tfrecord"), 403)
    with pytest.raises(Exception, match="DataError: TFRecords at .* cannot be read, from s3://.*part-.*cred") as error:
        found.collect()
    assert_no_secret(caught.value, error.value)
