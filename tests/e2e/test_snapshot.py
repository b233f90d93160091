"""Rows that Spark has written to ``cacheDir``: nodes train on them as on those that Spark feeds."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import LOCAL, jobs_of
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from train_functions import write

from tfos_ml import KerasEstimator, TFEstimator, errors

ROWS = 200
pytestmark = pytest.mark.filterwarnings("ignore:.*left out", "ignore::tfos_ml.errors.NothingExportedWarning")


def rows(spark):
    """Rows of every kind in four partitions, one without a row: some have a null or NaN, or are marked."""
    number = F.col("id")
    lists = F.transform(F.sequence(F.lit(1), number % 3 + 1), lambda i: F.sin(i + number).cast("float"))
    return (
        spark.range(0, ROWS, 1, 4)
        .where("id < 100 or id >= 150")
        .select(
            "id",
            array_to_vector(F.array(F.sin(number), F.cos(number * 7))).alias("features"),
            F.when(number == 7, None).when(number == 8, float("nan")).otherwise(F.cos(number * 0.1)).alias("label"),
            (number % 5 == 0).alias("held"),
            (1 + number % 3 * 0.5).alias("weight"),
            F.concat(F.lit("é "), number).alias("name"),
            lists.alias("ragged"),
            F.timestamp_micros(number * 1_000_001).alias("time"),
            number.cast("decimal(10,2)").alias("decimal"),
        )
    )


def record(args, ctx):
    """Record the rows of two passes and those for validation."""
    passes = [
        [[str(np.asarray(batch[name]).tolist()) for name in sorted(batch)] for batch in ctx.dataset()] for _ in range(2)
    ]
    held = [str(batch["id"].numpy().tolist()) for batch in ctx.validation_dataset()]
    write(args, ctx, {"passes": passes, "held": held, "rows": ctx.row_count})


COLUMNS = ("id", "features", "name", "ragged", "time", "decimal", "y")
SKIPPED = {"handleInvalid": "skip"}


def passes_of(df, directory: Path, **params):
    """What each node records."""
    directory.mkdir()
    names = {"inputMapping": {name: name for name in COLUMNS}, "validationIndicatorCol": "held"}
    estimator = TFEstimator(trainFn=record, clusterSize=3, batchSize=16, seed=3, verbose=0, **names)
    estimator.setParams(tfArgs={"directory": str(directory)}, **SKIPPED, **params)
    model = estimator.fit(df.withColumnRenamed("label", "y"))
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))], model.summary


@pytest.mark.corner("Rows of cacheDir are those that Spark feeds, with a split, on any number of nodes")
def test_nodes_get_the_rows_that_spark_feeds(spark, tmp_path):
    df = rows(spark)
    fed, told = passes_of(df, tmp_path / "fed")
    read, about = passes_of(df, tmp_path / "read", cacheDir=str(tmp_path / "cache dir%"))
    assert read == fed
    assert (about.rows, about.skippedRows) == (told.rows, 2)
    assert (about.snapshot["rows"], about.snapshot["is_new"]) == (ROWS - 50, True)


def network():
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((2,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def estimator(**params):
    common = {"model": network, "batchSize": 16, "epochs": 2, "seed": 3, "verbose": 0}
    return KerasEstimator(**{**common, **SKIPPED, **params})


@pytest.fixture(scope="module")
def written(sessions, tmp_path_factory):
    """Files of a DataFrame, the directory of its snapshot, and the model of the fit that wrote it."""
    spark, directory = sessions.get(LOCAL), tmp_path_factory.mktemp("written")
    rows(spark).write.parquet(str(directory / "files"))
    model = estimator(cacheDir=str(directory / "cache")).fit(spark.read.parquet(str(directory / "files")))
    return directory / "files", directory / "cache", model


@pytest.fixture
def snapshot(written, tmp_path):
    """The files, and a copy of the snapshot, which this program does not know."""
    files, cache, _ = written
    return files, Path(shutil.copytree(cache, tmp_path / "cache"))


def test_a_second_fit_reads_and_says_what_and_warns_of_newer_files(spark, written, capfd):
    files, cache, first = written
    again = estimator(cacheDir=f"{cache}/../cache", verbose=1)
    second = again.fit(spark.read.parquet(str(files)))
    assert second.summary.history == first.summary.history
    assert first.summary.timeline["snapshot"] > 0
    assert second.summary.snapshot["rows"] == ROWS - 50
    assert not second.summary.snapshot["is_new"]
    assert "has 150 rows, written 20" in capfd.readouterr().err
    with pytest.raises(errors.SnapshotError, match="has the rows of another DataFrame"):
        again.fit(rows(spark).where("id > 3"))
    before = {*files.iterdir()}
    rows(spark).where("id < 9").write.mode("append").parquet(str(files))
    try:
        with pytest.warns(UserWarning, match="changed since then: [1-4] are new or have changed, 0 are gone"):
            model = again.fit(spark.read.parquet(str(files)))
    finally:
        for path in {*files.iterdir()} - before:
            path.unlink()
    assert "have it written again" in model.summary.warnings[-1]
    assert model.summary.rows == ROWS - 50 - 2


def test_a_snapshot_that_does_not_fit_is_an_error_before_any_job(spark, snapshot):
    files, cache = snapshot
    df, one = spark.read.parquet(str(files)), estimator(cacheDir=str(cache))
    jobs = jobs_of(spark)
    with pytest.raises(errors.SnapshotError, match=r"not have the columns \['ragged \(float32\[\]\)'\] of this fit"):
        TFEstimator(trainFn=record, featuresCol="ragged", cacheDir=str(cache), verbose=0).fit(df)
    with pytest.raises(errors.SnapshotError, match=r"\['label \(int32\)'\]"):
        one.fit(df.withColumn("label", F.col("id").cast("int")))
    with pytest.raises(errors.SnapshotError, match=r"\['held \(bool\)'\]"):
        one.fit(df, {one.validationIndicatorCol: "held"})
    part = next(cache.glob("rows-*/part-00007-*"))
    part.write_bytes(part.read_bytes()[:-1])
    next(cache.glob("rows-*/part-00008-*")).unlink()
    with pytest.raises(errors.SnapshotError, match="is damaged: 2 of 60 files are missing or have another size"):
        one.fit(df)
    (cache / "manifest.json").write_text("{")
    with pytest.raises(errors.SnapshotError, match=r"a manifest\.json of another version"):
        one.fit(df)
    assert jobs_of(spark) == jobs


def test_files_of_a_writer_that_was_killed_are_no_snapshot(spark, snapshot):
    files, cache = snapshot
    df, (left,) = spark.read.parquet(str(files)), cache.glob("rows-*")
    (cache / "manifest.json").unlink()
    older = Path(shutil.copytree(left, cache / "rows-older"))
    for path in older.iterdir():
        os.utime(path, (0, 0))
    (left / "part-00000-half").write_bytes(b"PAR1")
    summary = estimator(cacheDir=str(cache)).fit(df).summary
    assert (summary.snapshot["is_new"], summary.rows) == (True, ROWS - 50 - 2)
    assert left.is_dir()  # another program may be writing it
    assert not older.exists()


def test_a_quoted_uri_names_the_same_directory_for_all_params(spark, tmp_path):
    """Red before: logDir was a directory called my%20rows, and cacheDir was refused after Spark had written there."""
    names = ["cacheDir", "exportDir", "logDir", "modelDir"]
    (tmp_path / "my rows").mkdir()
    places = {name: (tmp_path / "my rows" / name).as_uri() for name in names}
    estimator(epochs=1, **places).fit(rows(spark))
    assert [path.name for path in tmp_path.iterdir()] == ["my rows"]
    assert sorted(path.name for path in (tmp_path / "my rows").iterdir() if any(path.iterdir())) == names
