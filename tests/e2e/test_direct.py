"""Nodes that read Parquet files themselves: rows, order and weights are those of rows that Spark feeds."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import LOCAL, ON_CONNECT, on
from direct_rows import TOTAL, WIDTH, estimator_of, partition_bytes, passes_of, record, table, write_files
from pyspark.ml import Pipeline
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, TFEstimator, errors
from tfos_ml.driver import file_scan


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("direct") / "some files")


@pytest.mark.parametrize("size", [2000, 5000, 128 << 20])
def test_positions_of_rows_in_partitions_are_those_of_spark(spark, files, size):
    """Without a fit: which row has which id, by the plan and by Spark."""
    from tfos_ml.agent.file_rows import read_share
    from tfos_ml.data.schema import FeedSchema, column_spec
    from tfos_ml.driver.file_plan import make_plan
    from tfos_ml.protocol.template import make_template

    with partition_bytes(spark, size):
        df = spark.read.parquet(str(files))
        numbered = df.select(F.col("id").alias("c0"), F.monotonically_increasing_id().alias("row"))
        expected = sorted((r["row"], r["c0"]) for r in numbered.collect())
        plan = make_plan(df, ["id"], None, lambda: numbered)
        partitions = numbered.rdd.getNumPartitions()
    assert partitions > (1 if size < 1 << 20 else 0)
    schema = FeedSchema((column_spec(df.schema, "id", "id", "feature"),))
    shares = [pa.Table.from_batches(read_share(plan, schema, make_template(3), rank)) for rank in range(3)]
    found = sorted(
        pair for share in shares for pair in zip(*share.select(["row", "c0"]).to_pydict().values(), strict=True)
    )
    assert found == expected
    assert max(len(s) for s in shares) - min(len(s) for s in shares) <= partitions


COMBINATIONS = [(workers, shuffle) for workers in (1, 2, 3) for shuffle in (False, True)]


@pytest.mark.corner("Nodes read Parquet files themselves: each has the rows that Spark feeds, in the same order")
@pytest.mark.parametrize(
    ("workers", "shuffle"),
    [pytest.param(*c, marks=() if c == (3, True) else pytest.mark.chaos) for c in COMBINATIONS],
)
@on(LOCAL)
def test_each_node_has_the_same_rows_in_the_same_order_both_ways(any_spark, files, tmp_path, workers, shuffle):
    with partition_bytes(any_spark, 4000):
        df = any_spark.read.parquet(str(files)).select("id", "features", "label")
        if ON_CONNECT:
            with pytest.raises(errors.InputPathError, match="a client of Spark Connect does not see Spark's plan"):
                estimator_of("direct").fit(df)
            return
        fed, direct = (passes_of(df, tmp_path, path, workers, shuffle=shuffle) for path in ("spark", "direct"))
    assert direct == fed
    for epoch in (0, 1):
        assert sorted(i for node in direct for i in node["passes"][epoch]) == list(range(TOTAL))


def test_nodes_that_do_not_wait_have_the_same_batches(spark, files, tmp_path):
    with partition_bytes(spark, 4000):
        df = spark.read.parquet(str(files))
        waited, begun = (passes_of(df, tmp_path, "direct", wait=wait, shuffle=False) for wait in (True, False))
        with pytest.raises(errors.CollectiveCallError, match="wait=False needs one node that trains, or rows of files"):
            estimator_of("spark", tfArgs={"wait": False}, shuffle=False).fit(df)
    assert begun == waited


@pytest.mark.chaos
def test_more_nodes_than_row_groups(spark, tmp_path):
    directory = tmp_path / "one group"
    directory.mkdir()
    pq.write_table(table(0, 50), directory / "one.parquet")
    df = spark.read.parquet(str(directory))
    fed, direct = (passes_of(df, tmp_path, path, 3) for path in ("spark", "direct"))
    assert direct == fed
    assert sorted(i for node in direct for i in node["passes"][0]) == list(range(50))


def fit_keras(df, directory: Path, path: str, workers: int = 2, stages=(), **params):
    """A model that is the last stage of a pipeline, and its weights at the end of training."""
    import keras

    class SaveWeights(keras.callbacks.Callback):
        chief_only = True

        def on_train_end(self, logs=None):
            np.savez(str(directory / f"{path}.npz"), *self.model.get_weights())

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((WIDTH,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    fixed = {"batchSize": 32, "epochs": 2, "seed": 3, "verbose": 0, "callbacks": [SaveWeights()]}
    estimator = KerasEstimator(model=model, clusterSize=workers, inputPath=path, **{**fixed, **params})
    fitted = Pipeline(stages=[*stages, estimator]).fit(df).stages[-1]
    with np.load(directory / f"{path}.npz") as saved:
        return fitted, [saved[name].tobytes() for name in saved.files]


@pytest.mark.parametrize(
    "params",
    [
        {"validationSplit": 0.25},
        pytest.param({"shuffle": False, "weightCol": "weight", "batchSize": 7}, marks=pytest.mark.chaos),
        pytest.param({"validationIndicatorCol": "held", "handleInvalid": "skip"}, marks=pytest.mark.chaos),
    ],
    ids=["a split, shuffled", "weighted, in order", "validation column"],
)
def test_weights_of_keras_are_the_same_bit_for_bit_both_ways(spark, files, tmp_path, params):
    with partition_bytes(spark, 4000):
        df = spark.read.parquet(str(files))
        fed, weights = fit_keras(df, tmp_path, "spark", **params)
        direct, others = fit_keras(df, tmp_path, "direct", **params)
    assert others == weights
    assert direct.summary.history == fed.summary.history
    for name in ("rows", "validation_rows", "skipped_rows"):
        assert getattr(direct.summary, name) == getattr(fed.summary, name)
    assert direct.summary.rows + direct.summary.validationRows == TOTAL


def test_vectors_dense_and_sparse_become_the_same_floats(spark, tmp_path):
    rows = [(i, Vectors.dense(np.sin(np.arange(WIDTH) * i + 0.1)), float(i)) for i in range(40)]
    rows += [(40 + i, Vectors.sparse(WIDTH, {1: 1 / 3, 4: -i / 7}), float(i)) for i in range(40)]
    spark.createDataFrame(rows, ["id", "features", "label"]).write.parquet(str(tmp_path / "vectors"))
    df = spark.read.parquet(str(tmp_path / "vectors"))
    fed, direct = (passes_of(df, tmp_path, path) for path in ("spark", "direct"))
    assert direct == fed
    assert sorted(i for node in direct for i in node["passes"][0]) == list(range(80))


def with_nulls(directory: Path) -> Path:
    """Rows of which some hold a null or NaN, at several levels."""
    directory.mkdir()
    rows = table(0, 60).to_pylist()
    rows[3]["features"] = None
    rows[17]["features"][2] = None
    rows[40]["features"][0] = float("nan")
    rows[41]["held"] = None
    pq.write_table(pa.Table.from_pylist(rows, table(0, 1).schema), directory / "nulls.parquet", row_group_size=9)
    return directory


def test_rows_with_nulls_and_nan_are_left_out_both_ways(spark, tmp_path):
    df = spark.read.parquet(str(with_nulls(tmp_path / "nulls")))
    found = []
    for path in ("spark", "direct"):
        with pytest.warns(UserWarning, match="left out 3 of 60 rows"):
            found.append(passes_of(df, tmp_path, path, handleInvalid="skip"))
    assert found[0] == found[1]
    left_out = {3, 17, 40}
    assert sorted(i for node in found[1] for i in node["passes"][0]) == [i for i in range(60) if i not in left_out]


def test_a_null_is_an_error_both_ways(spark, tmp_path):
    df = spark.read.parquet(str(with_nulls(tmp_path / "nulls")))
    for path in ("spark", "direct"):
        estimator = estimator_of(path, handleInvalid="keep")  # NaN, of another node, might be found first
        with pytest.raises(errors.NullValueError, match="Column 'features' has"):
            estimator.fit(df)


def test_files_without_rows_are_an_error(spark, tmp_path):
    pq.write_table(table(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(errors.EmptyDataError, match="no rows"):
        estimator_of("direct").fit(spark.read.parquet(str(tmp_path / "empty.parquet")))


class Change:
    """Changes a file when it is pickled: when the fit has been planned, and before nodes read."""

    def __init__(self, change):
        self._changes = [change]

    def __reduce__(self):
        while self._changes:
            self._changes.pop()()
        return str, ("changed",)


CHANGES = {
    "other rows": (lambda path: pq.write_table(table(5, 50), path), "has changed since"),
    "touched": (lambda path: os.utime(path, (time.time() + 5, time.time() + 5)), "has changed since"),
    "gone": (os.unlink, "has changed since: is gone"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_changes_after_planning_is_an_error(spark, tmp_path, name):
    path = tmp_path / "one.parquet"
    pq.write_table(table(0, 50), path)
    change, told = CHANGES[name]
    arguments = {"directory": str(tmp_path), "change": Change(lambda: change(path))}
    estimator = TFEstimator(trainFn=record, tfArgs=arguments, clusterSize=1, verbose=0, inputPath="direct")
    with pytest.raises(errors.FilesChangedError, match=rf"one\.parquet had .* bytes .*{told}"):
        estimator.fit(spark.read.parquet(str(path)))


def test_a_file_that_is_damaged_is_an_error_of_the_node(spark, tmp_path):
    path = tmp_path / "one.parquet"
    pq.write_table(table(0, 50), path, compression="gzip")
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(60) + whole[64:])
    columns = {"id": "id", "features": "x"}  # of which the first is damaged
    estimator = estimator_of("direct", clusterSize=1, inputMapping=columns)
    with pytest.raises(errors.FileReadError, match=r"one\.parquet cannot be read"):
        estimator.fit(spark.read.parquet(str(path)))


def cases(spark, files, directory):
    """DataFrames, and why Spark feeds them."""
    df = spark.read.parquet(str(files))
    df.select("label", F.col("features").cast("array<double>")).write.orc(str(directory / "orc"))
    df.select("label", F.current_date().alias("features")).write.parquet(str(directory / "dates"))
    double = "label double, features array<double>"
    return [
        (df.withColumn("label", F.col("label") * 2), "column 'label' is computed: "),
        (df.limit(5), r"more than a selection of columns \(\w*Limit\)"),
        (df.orderBy("id"), r"more than a selection of columns \(Sort\)"),
        (df.union(df), r"more than a selection of columns \(Union\)"),
        (df.filter("id < 10").persist(), r"the DataFrame is cached \(InMemoryRelation\)"),
        (spark.range(9).selectExpr("id features", "id label"), r"is no scan of files \(Range\)"),
        (spark.read.schema(double).orc(str(directory / "orc")), r"do not read files of .*\(OrcFileFormat\)"),
        (spark.read.schema(double).parquet(str(files)), r"'features' is list<.*float> in .*array<double> to Spark"),
        (spark.read.parquet(str(directory / "dates")), "converts column 'features' of type date"),
        (spark.read.option("ignoreCorruptFiles", "true").parquet(str(files)), "ignoreCorruptFiles=true"),
    ]


def test_why_spark_feeds_what_is_no_plain_scan(spark, files, tmp_path):
    for df, reason in cases(spark, files, tmp_path):
        text = estimator_of().explainInput(df)
        assert text.startswith("spark: "), text
        assert re.search(reason, text), text
        with pytest.raises(errors.InputPathError, match=reason):
            estimator_of("direct").fit(df)
        df.unpersist()


def test_what_is_told_of_files_that_nodes_read(spark, files):
    renamed = spark.read.parquet(str(files)).select(F.col("features").alias("x"), F.col("label").alias("features"))
    text = "direct: a plain scan of 5 Parquet file(s) with 49 row group(s) and 488 row(s); "
    assert estimator_of().explainInput(renamed) == text + "2 nodes read a share each, and send the others their rows"
    assert estimator_of(clusterSize=1).explainInput(renamed) == text + "the node reads them"
    assert estimator_of("spark").explainInput(renamed) == "spark: inputPath='spark'"
    many = estimator_of(clusterSize=60).explainInput(renamed)
    assert re.search(r"; \d\d of 60 nodes read a share each, and send the others their rows$", many)
    by_program = estimator_of(inputMode="TENSORFLOW").explainInput(renamed)
    assert by_program == "spark: inputMode=TENSORFLOW has train functions read the files (ctx.files())"


def test_where_files_lie_is_what_spark_knows(spark, files, monkeypatch):
    df = spark.read.parquet(str(files))
    assert {split.hosts for split in file_scan.splits(df)} == {()}
    monkeypatch.setattr(file_scan, "NO_HOST", "")
    assert {split.hosts for split in file_scan.splits(df)} == {("localhost",)}


def test_no_file_that_has_changed_since_spark_listed_it_is_planned(spark, tmp_path):
    path = tmp_path / "one.parquet"
    pq.write_table(table(0, 50), path)
    df = spark.read.parquet(str(path))
    pq.write_table(table(0, 51), path)
    assert "has changed since Spark listed the files; read" in estimator_of().explainInput(df)


def test_nothing_is_cached_for_several_fits_that_read_files(spark, files, tmp_path):
    df = spark.read.parquet(str(files))
    estimator = estimator_of("direct", tfArgs={"directory": str(tmp_path)}, inputMapping={"id": "id", "features": "x"})
    found = estimator.fitMultiple(df, [{estimator.seed: 1}])
    assert not df.storageLevel.useMemory
    with pytest.warns(errors.TfosMlWarning):
        assert [number for number, _ in found] == [0]


def test_python_workers_stay_for_the_tasks_after_a_fit(spark, files, tmp_path):
    """Spark ends one that leaves input unread, and its successor imports everything anew."""

    def workers():
        ours = {child.pid for child in psutil.Process().children(recursive=True)}
        daemons = {"tfos_ml.agent.daemon", "pyspark.daemon"}
        found = psutil.process_iter(["cmdline"])
        return {one.pid for one in found if one.pid in ours and daemons & {*(one.info["cmdline"] or ())}}

    df = spark.read.parquet(str(files))
    df.mapInArrow(lambda batches: batches, df.schema).count()
    before = workers()
    assert len(before) > 1
    with pytest.warns(errors.TfosMlWarning):
        estimator_of("direct", tfArgs={"directory": str(tmp_path)}, inputMapping={"id": "id", "features": "x"}).fit(df)
    assert before <= workers()
