"""Bad input is a typed error on the driver before any Spark job starts."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import train_functions
from conftest import jobs_of, open_for, wait_until
from pyspark.sql import functions as F

from tfos_ml import InputMode, TFEstimator, errors
from tfos_ml.common.session_settings import ALLOW_PLAINTEXT
from tfos_ml.common.spark_api import session_thread
from tfos_ml.driver.preflight import check_settings, encryption_of


@pytest.fixture
def no_jobs(spark):
    """Asserts that no Spark job was started."""
    before = jobs_of(spark)
    yield
    assert jobs_of(spark) == before


@pytest.fixture
def df(spark):
    return spark.range(10).select(F.col("id").alias("features"), (F.col("id") % 2).alias("label"))


def fit(df, **params):
    return TFEstimator(**{"trainFn": train_functions.do_nothing, "verbose": 0, **params}).fit(df)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"clusterSize": 9}, errors.NotEnoughSlotsError, "needs 9 task slots at once, but Spark has 4"),
        ({"clusterSize": 2, "numPS": 2}, errors.ParamError, "leaves no worker"),
        ({"driverPSNodes": True}, errors.ParamError, "numPS=0"),
        ({"featuresCol": "feature"}, errors.ColumnNotFoundError, "'feature' does not exist. Did you mean 'features'"),
        ({"validationIndicatorCol": "label"}, errors.ColumnTypeError, "must be boolean"),
        ({"inputMapping": {"features": "x", "label": "x"}}, errors.ParamError, "Each tensor takes one column"),
        ({"exportDir": "/proc/nowhere/model"}, errors.DestinationError, "cannot be written"),
        ({"exportDir": "/etc"}, errors.DestinationError, "is not empty"),
        ({"inputMode": InputMode.TENSORFLOW}, errors.EmptyDataError, "it has none"),
    ],
)
def test_parameters_and_columns(no_jobs, df, params, error, message):
    with pytest.raises(error, match=message):
        fit(df, **params)
    with pytest.raises(errors.ColumnNotFoundError, match="ambiguous"):
        fit(df.select("features", "features"))


def test_train_function_that_cannot_be_pickled_names_what_it_captures(no_jobs, df):
    lock = threading.Lock()

    def captures_lock(args, ctx):
        lock.acquire()

    with pytest.raises(errors.TrainFnPickleError, match="the captured variable 'lock' .*lock"):
        fit(df, trainFn=captures_lock)
    with pytest.raises(errors.TrainFnPickleError, match="tfArgs"):
        fit(df, tfArgs={"x": lock})


def export_anything(args, ctx):
    import keras

    ctx.get_data_feed().should_stop()
    ctx.export_saved_model(keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)]))


def export_to_a_store_that_hangs(args, ctx):
    """The store waits for a reader of its pipe."""
    staged = Path(f"{args['target']}.partial-{ctx.run_id}")
    staged.mkdir()
    os.mkfifo(staged / "saved_model.pb")
    export_anything(args, ctx)


@pytest.mark.chaos
def test_a_store_that_does_not_answer_is_an_error_after_feed_timeout(df, tmp_path):
    target = str(tmp_path / "model")
    program = {"trainFn": export_to_a_store_that_hangs, "tfArgs": {"target": target}}
    try:
        with pytest.raises(errors.DestinationError, match="cannot be written from .*: it has not answered for 2 s"):
            fit(df, exportDir=target, feedTimeout=2.0, **program)
    finally:
        for pipe in tmp_path.rglob("saved_model.pb"):
            open_for(pipe)
    assert not os.path.exists(target)


@pytest.mark.parametrize("condition", ["id < 0", "id > 10 + rand()"])
def test_empty_dataframe_is_an_error_and_never_gives_a_model(spark, tmp_path, condition):
    """With and without a barrier task that runs: adaptive execution drops the whole stage."""
    target = tmp_path / "model"
    df = spark.range(10).where(condition).withColumnRenamed("id", "features")
    with pytest.raises(errors.EmptyDataError):
        fit(df, trainFn=export_anything, exportDir=str(target))
    assert not target.exists()


def test_waiting_for_slots_that_others_hold_ends_with_the_reservation_timeout(spark, tmp_path):
    @F.udf("long")
    def hold(value):
        import time

        (tmp_path / f"holds-{value}").touch()
        while not (tmp_path / "release").exists():
            time.sleep(0.05)
        return value

    holder = session_thread(spark, lambda: spark.range(0, 3, 1, 3).select(hold("id")).collect())
    holder.start()
    try:
        assert wait_until(lambda: len([*tmp_path.glob("holds-*")]) == 3, 60)
        with pytest.raises(errors.ReservationTimeoutError, match="2 nodes wait for 2 free task slots"):
            fit(spark.range(10).withColumnRenamed("id", "features"), clusterSize=2, reservationTimeout=2)
    finally:
        (tmp_path / "release").touch()
        holder.join(60)


def test_a_stream_is_not_fitted_on(spark):
    """Red before: Spark's AnalysisException, of a query with streaming sources."""
    stream = spark.readStream.format("rate").load().selectExpr("cast(value as float) features", "value label")
    estimator = TFEstimator(trainFn=lambda args, ctx: None, verbose=0)
    with pytest.raises(errors.InputTypeError, match="fit takes rows that have an end.*foreachBatch.*TFCluster"):
        estimator.fit(stream)
    with pytest.raises(errors.InputTypeError, match="fitMultiple takes rows that have an end"):
        estimator.fitMultiple(stream, [{}])


BREAKING = {
    "spark.speculation=true would start slow nodes a second time": {
        "spark.master": "spark://master:7077",
        "spark.dynamicAllocation.enabled": "true",
        "spark.speculation": "true",
    },
    "spark.io.encryption.enabled=true encrypts .* rows .* plain text .* spark.tfos_ml.allowPlaintext=true": {
        "spark.io.encryption.enabled": "true",
    },
    "spark.network.crypto.enabled=true encrypts Spark's traffic, .* gRPC between nodes cannot be .* KerasEstimator": {
        "spark.master": "yarn",
        "spark.network.crypto.enabled": "true",
    },
    "spark.executor.pyspark.memory=2g limits": {"spark.executor.pyspark.memory": "2g"},
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout=true with": {
        "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": "60",
        "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "true",
    },
}


def test_settings_that_would_break_a_run():
    """And those that would not: encryption where there is no gRPC, or on one host, or that nobody insists on."""
    for message, conf in BREAKING.items():
        with pytest.raises(errors.ClusterConfigError, match=message):
            check_settings(SimpleNamespace(conf=conf))
    encrypted = {"spark.master": "yarn", "spark.network.crypto.enabled": "true"}
    check_settings(SimpleNamespace(conf=encrypted), uses_grpc=False)
    assert encryption_of(SimpleNamespace(conf=encrypted)) == ["spark.network.crypto.enabled"]
    assert encryption_of(SimpleNamespace(conf={**encrypted, "spark.master": "local[4]"})) == []
    check_settings(SimpleNamespace(conf={"spark.io.encryption.enabled": "true", str(ALLOW_PLAINTEXT): "true"}))
