"""Rows that are written once and read by the nodes of several fits: those that Spark feeds, until some change."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import LOCAL, ON_CONNECT, on
from direct_rows import TOTAL, WIDTH, estimator_of, partition_bytes, passes_of, record, table, write_files
from pyspark.ml.feature import HashingTF, StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from test_direct import fit_keras

from tfos_ml import TFEstimator, delete_cache, errors

DAY = 86400


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("cached") / "files")


def computed(spark, files):
    """Rows that nodes cannot read from the files: computed columns, joined and sorted."""
    df = spark.read.parquet(str(files))
    means = df.groupBy((F.col("id") % 5).alias("k")).agg(F.avg("label").alias("mean"))
    joined = df.withColumn("k", F.col("id") % 5).join(means, "k")
    return joined.selectExpr("id", "features", "label * 2 - mean AS label", "held").orderBy("id")


def fit(df, directory, cache, workers=2, **params):
    """What each node had, what the model tells of cached rows, and what was told before."""
    with pytest.warns(errors.TfosMlWarning):
        return fit_unwatched(df, directory, cache, workers, **params)


def fit_unwatched(df, directory, cache, workers, **params):
    directory.mkdir()
    arguments = {"tfArgs": {"directory": str(directory)}, "inputMapping": {"id": "id", "features": "x"}, "seed": 3}
    estimator = estimator_of("auto", clusterSize=workers, batchSize=32, cacheDir=str(cache), **arguments, **params)
    told = estimator.explainInput(df)
    model = estimator.fit(df)
    return [path.read_text() for path in sorted(directory.glob("*.json"))], model.summary.get("cache"), told


def parts(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*.parquet")}


@pytest.mark.corner("Rows of cacheDir: those that Spark feeds, reused while nothing changes")
@on(LOCAL)
def test_cached_rows_are_those_that_spark_feeds_and_are_reused(any_spark, files, tmp_path):
    df, cache = computed(any_spark, files), tmp_path / "cache dir%"
    if ON_CONNECT:
        assert "a client of Spark Connect does not see" in estimator_of(cacheDir=str(cache)).explainInput(df)
        return
    fed = passes_of(df, tmp_path, "spark")
    first, written, told = fit(df, tmp_path / "first", cache)
    assert told.startswith(f"cache: nodes read rows of key {written['key']}: a job writes them to cacheDir first (")
    names = parts(cache)
    second, reused, again = fit(computed(any_spark, files), tmp_path / "second", cache)
    assert f"{TOTAL} row(s) in {len(names)} file(s) of cacheDir, last used at " in again
    recorded = [path.read_text() for path in sorted((tmp_path / "spark-2").glob("*.json"))]
    assert len(fed) == len(recorded) == 2
    assert first == second == recorded
    assert written == {"key": reused["key"], "reused": False, "rows": TOTAL}
    assert reused["reused"] is True
    assert parts(cache) == names


def key_of(df, cache, **params):
    text = estimator_of(cacheDir=str(cache), **params).explainInput(df)
    assert text.startswith("cache: nodes read rows of key "), text
    return text.split()[6].rstrip(":")


def test_a_key_changes_with_plan_columns_settings_and_files(spark, files, tmp_path):
    copied = write_files(tmp_path / "copy")
    df = spark.read.parquet(str(copied)).withColumn("y", F.col("label") * 2)
    keys = {key_of(df.filter(F.col("y") > n), tmp_path) for n in (0, 0, 1)}
    assert len(keys) == 2
    long = [key_of(df.filter(F.col("id").isin([*range(40), n])), tmp_path, labelCol="y") for n in (50, 51)]
    texts = [
        key_of(df.withColumn("features", F.concat(*map(F.lit, t))), tmp_path) for t in (("a, b",), ("a", "b"), ("ab",))
    ]
    orders = [key_of(df.orderBy(order), tmp_path) for order in (F.col("id"), F.col("id").desc(), F.col("y"))]
    joins = [
        key_of(df.join(df.select("id", "weight").filter("id > 9"), "id", how), tmp_path) for how in ("left", "inner")
    ]
    base = [key_of(df, tmp_path, labelCol="y", **more) for more in ({}, {"weightCol": "weight"})]
    base.append(key_of(df, tmp_path, labelCol="y", validationIndicatorCol="held"))
    with partition_bytes(spark, 4000):
        base.append(key_of(df, tmp_path, labelCol="y"))
    file = next(copied.glob("*0%.parquet"))
    os.utime(file, ns=(5, file.stat().st_mtime_ns + 1))
    base.append(key_of(df, tmp_path, labelCol="y"))
    found = [*long, *texts, *orders, *joins, *base]
    assert len(set(found)) == len(found)


def hashed(df):
    """Vectors by a function that has a whole stage with it."""
    words = df.withColumn("words", F.array(F.lit("a"))).drop("features")
    return HashingTF(inputCol="words", outputCol="features", numFeatures=WIDTH).transform(words)


def test_rows_whose_changes_are_not_known_are_fed(spark, files, tmp_path):
    df = spark.read.parquet(str(files)).select("features", (F.col("label") * 2).alias("label"))
    twice, kept = F.udf(lambda x: 2 * x, "double"), df.filter("label > 0").persist()
    cases = [
        (df.withColumn("label", F.rand(1)), "are not deterministic"),
        (df.withColumn("label", twice("label")), r"whose content Spark does not tell \(PythonUDF\)"),
        (df.mapInPandas(lambda frames: frames, df.schema), r"does not tell \(PythonUDF\)"),
        (df.withColumn("label", F.unix_timestamp()), r"depends on when and where it runs \(CurrentTimestamp\)"),
        (spark.createDataFrame([([1.0], 2.0)], "features array<double>, label double"), "rows of the program itself"),
        (spark.sql("SELECT array(1d) features, 1d label"), ""),
        (df.filter("label > (SELECT avg(id) FROM range(5))"), r"does not tell \(ScalarSubquery\)"),
        (df.withColumn("features", array_to_vector("features")), ""),
        (hashed(df), r"does not tell \(HashingTF with org.apache.spark.ml.param.ParamMap\)"),
        (hashed(df).withColumn("label", F.rand(1)), "are not deterministic"),
        (kept, r"reads what is no file \(InMemoryRelation\)"),
    ]
    for frame, reason in cases:
        text = estimator_of(cacheDir=str(tmp_path)).explainInput(frame)
        if not reason:
            assert text.startswith("cache: "), text
            continue
        assert text.startswith("spark: "), text
        with pytest.raises(errors.InputPathError, match=reason):
            estimator_of("direct", cacheDir=str(tmp_path)).fit(frame)
    kept.unpersist()
    assert not list(tmp_path.iterdir())


def split(spark, files):
    """Rows whose features are a column each, as VectorAssembler takes them."""
    numbers = [f"features[{i}] AS x{i}" for i in range(WIDTH - 1)]
    return spark.read.parquet(str(files)).selectExpr("*", *numbers, "id % 3 AS x5").drop("features")


def assembler():
    """A stage with a random name of its own, which is in the plan, and in the names of fields of whole numbers."""
    return VectorAssembler(inputCols=[f"x{i}" for i in range(WIDTH)], outputCol="features")


def test_rows_of_a_pipeline_with_a_vector_assembler_are_cached(spark, files, tmp_path):
    df = split(spark, files)
    _, fed = fit_keras(df, tmp_path, "spark", stages=[assembler()])
    for reused in (False, True):
        model, weights = fit_keras(df, tmp_path, "auto", stages=[assembler()], cacheDir=str(tmp_path / "cache"))
        assert weights == fed
        assert model.summary.cache["reused"] is reused


def test_keys_tell_the_state_of_stages_of_spark_ml(spark, files, tmp_path):
    assembled = assembler().transform(split(spark, files))
    scaler, indexer = StandardScaler(inputCol="features", outputCol="y"), StringIndexer(inputCol="name", outputCol="k")
    frames = [
        assembled,
        assembler().setHandleInvalid("keep").transform(split(spark, files)),
        assembler().transform(split(spark, files).withColumn("x0", F.lit(1.0))),
        *(scaler.setWithMean(m).fit(assembled).transform(assembled) for m in (False, True)),
        *(indexer.setStringOrderType(o).fit(assembled).transform(assembled) for o in ("alphabetAsc", "alphabetDesc")),
    ]
    mappings = [{"features": "x"}] * 3 + [{"y": "x"}] * 2 + [{"k": "x"}] * 2
    keys = [[key_of(df, tmp_path, inputMapping=m) for df, m in zip(frames, mappings, strict=True)] for _ in range(2)]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == len(frames)


def made_here(spark, rows):
    """Rows that have no key: they are in no file."""
    return spark.createDataFrame(
        [(i, [i / 100] * WIDTH, i / 7, i % 3 == 0) for i in range(rows)],
        "id long, features array<double>, label double, held boolean",
    )


@on(LOCAL)
def test_rows_of_the_same_cache_key_are_used_again_whatever_the_plan(any_spark, tmp_path):
    cache, key = tmp_path / "cache", {"cacheKey": "rows-1.0"}
    df = made_here(any_spark, 100)
    first, written, told = fit(df, tmp_path / "first", cache, **key)
    assert told.endswith("; cacheKey='rows-1.0' says that they are the same)")
    other = made_here(any_spark, 50).withColumn("label", F.rand())
    second, reused, _ = fit(other, tmp_path / "second", cache, **key)
    assert second == first
    assert reused == {**written, "reused": True}
    assert written["rows"] == 100
    new = [
        {"cacheKey": "rows-1.1"},
        {**key, "validationIndicatorCol": "held"},
        {**key, "weightCol": "label"},
        {**key, "inputMapping": {"id": "id"}},
        {"df": df.withColumn("features", F.col("features").cast("array<float>")), **key},
        {"df": df.withColumn("id", F.col("id").cast("int")), **key},
    ]
    mapping = {"inputMapping": {"id": "id", "features": "x"}, "cacheDir": str(cache)}
    for params in new:
        frame = params.pop("df", df)
        assert ": a job writes them to cacheDir first" in estimator_of(**{**mapping, **params}).explainInput(frame)
    assert "100 row(s) in" in estimator_of(**mapping, **key).explainInput(other)


def test_a_cache_key_needs_a_cache(spark, files):
    for path in ("spark", "auto"):
        with pytest.raises(errors.ParamError, match="cacheKey='k' names rows in cacheDir, which is not set"):
            estimator_of(path, cacheKey="k").fit(spark.read.parquet(str(files)))


def test_a_cache_that_nodes_would_not_read_is_an_error(spark, files, tmp_path):
    with pytest.raises(errors.ParamError, match="inputPath='spark' has Spark feed all rows"):
        estimator_of("spark", cacheDir=str(tmp_path)).fit(spark.read.parquet(str(files)))
    (tmp_path / "file").write_text("")
    estimator = estimator_of(cacheDir=str(tmp_path / "file" / "cache"))
    with pytest.raises(errors.DestinationError, match=r"cacheDir='.*/file/cache' cannot be"):
        estimator.fit(spark.read.parquet(str(files)).withColumn("label", F.col("label") * 2))


def damage_list(cache):
    next(cache.glob("*.json")).write_text('{"format": 1, "key"')


def damage_size(cache):
    next(cache.rglob("*.parquet")).write_bytes(b"PAR1")


def lose_file(cache):
    next(cache.rglob("*.parquet")).unlink()


def lose_list(cache):
    next(cache.glob("*.json")).unlink()


@pytest.mark.parametrize(
    "harm", [lose_file, *(pytest.param(f, marks=pytest.mark.chaos) for f in (damage_list, damage_size, lose_list))]
)
def test_half_a_copy_is_written_anew(spark, files, tmp_path, harm):
    cache = tmp_path / "cache"
    first, written, _ = fit(computed(spark, files), tmp_path / "first", cache, 1)
    harm(cache)
    before = parts(cache)
    second, again, _ = fit(computed(spark, files), tmp_path / "second", cache, 1)
    assert second == first
    assert again == written
    assert not again["reused"]
    assert parts(cache) - before


def test_copies_expire_and_are_deleted_and_nothing_else(spark, files, tmp_path):
    cache = tmp_path / "cache"
    df = computed(spark, files)
    fit(df, tmp_path / "first", cache, 1)
    others = [cache / "notes.json", cache / f"tfos_ml-{'0' * 32}-more"]
    for path in others:
        path.write_text("{}")
    assert delete_cache(str(cache), unusedSeconds=DAY) == 0
    spark.conf.set("spark.tfos_ml.cacheExpiry", "0.001")
    try:
        assert "a job writes them" in estimator_of(cacheDir=str(cache), inputMapping={"id": "id"}).explainInput(df)
    finally:
        spark.conf.unset("spark.tfos_ml.cacheExpiry")
    assert delete_cache(str(cache)) == 1
    assert sorted(cache.iterdir()) == sorted(others)
    assert delete_cache(str(tmp_path / "nowhere")) == 0


def test_fits_at_once_have_the_same_rows_and_mix_nothing(spark, files, tmp_path):
    cache, found = tmp_path / "cache", {}

    def run(name):
        found[name] = fit_unwatched(computed(spark, files), tmp_path / name, cache, 1)

    def run_both():
        threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "other")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)

    with pytest.warns(errors.TfosMlWarning):
        run_both()
    assert found["one"][0] == found["other"][0]
    assert sorted(found[name][1]["reused"] for name in found) == [False, True]
    assert len(list(cache.glob("*.json"))) == 1
    assert delete_cache(str(cache)) == 1


OTHER = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = sys.argv[3:]
from pyspark.sql import SparkSession
from test_cache_dir import computed, estimator_of
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
mapping = {"id": "id", "features": "x"}
print(estimator_of(cacheDir=sys.argv[2], inputMapping=mapping).explainInput(computed(spark, sys.argv[1])))
spark.stop()
"""


@pytest.mark.chaos
def test_keys_are_the_same_in_programs_of_the_same_settings(files, tmp_path):
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", OTHER, str(files), str(tmp_path), tests, str(Path(__file__).parent)]
    done = [subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path) for _ in range(2)]
    texts = [run.stdout.splitlines()[-1] for run in done]
    assert texts[0].startswith("cache: nodes read rows of key "), done[0].stderr[-2000:]
    assert texts[0] == texts[1]


TOUCHED = {
    "time": lambda path: os.utime(path, (time.time() + 5, time.time() + 5)),
    "size": lambda path: pq.write_table(table(0, 60), path),
}


@pytest.mark.parametrize("change", TOUCHED)
def test_files_that_change_while_rows_are_written_are_an_error(spark, tmp_path, change):
    path, cache = tmp_path / "one.parquet", tmp_path / "cache"
    pq.write_table(table(0, 50), path)
    df = spark.read.parquet(str(path)).withColumn("label", F.col("label") * 2)
    chosen = estimator_of(cacheDir=str(cache))._choose_input(df, estimator_of()._template())
    TOUCHED[change](path)
    with pytest.raises(errors.FilesChangedError, match="have changed while its rows were written"):
        chosen.ready()
    assert not list(cache.iterdir())


def test_dates_are_the_same_from_cached_rows(spark, files, tmp_path):
    df = spark.read.parquet(str(files)).selectExpr("id", "features", "date_add(date'2024-01-01', int(id)) AS label")
    fed = passes_of(df, tmp_path, "spark", validationIndicatorCol=None)
    cached, told, _ = fit(df, tmp_path / "cached", tmp_path / "cache")
    recorded = [path.read_text() for path in sorted((tmp_path / "spark-2").glob("*.json"))]
    assert cached == recorded
    assert fed
    assert told["rows"] == TOTAL
    assert np.isfinite(fed[0]["weights"]).all()


@pytest.mark.chaos
def test_weights_of_keras_from_cached_rows_are_those_of_fed_ones(spark, files, tmp_path):
    df = computed(spark, files).withColumn("held", F.col("id") % 7 == 0)
    for params in ({"validationSplit": 0.25}, {"validationIndicatorCol": "held"}):
        _, weights = fit_keras(df, tmp_path, "spark", **params)
        for reused in (False, True):
            model, others = fit_keras(df, tmp_path, "direct", cacheDir=str(tmp_path / "cache"), **params)
            assert others == weights
            assert model.summary.cache["reused"] is reused


def test_rows_that_are_deleted_before_nodes_read_them_are_an_error(spark, files, tmp_path):
    cache = tmp_path / "cache"
    df = spark.read.parquet(str(files)).withColumn("label", F.col("label") * 2)
    arguments = {"tfArgs": {"directory": str(tmp_path)}, "inputMapping": {"id": "id", "features": "x"}}
    estimator = TFEstimator(trainFn=record, inputPath="direct", cacheDir=str(cache), verbose=0, **arguments)
    chosen = estimator._choose_input(df, estimator._template()).ready()
    assert delete_cache(str(cache)) == 1
    assert chosen.plan is not None
    from tfos_ml.agent.file_rows import read_share

    with pytest.raises(errors.FilesChangedError, match="has changed since: is gone"):
        list(read_share(chosen.plan, estimator._columns_of(df), estimator._template(), 0))
