"""Nodes that read other files than Parquet themselves: rows, order and weights are those of rows that Spark feeds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyspark
import pytest
from direct_rows import TOTAL, WIDTH, estimator_of, passes_of, rows_both_ways, write_files
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from train_functions import write

from tfos_ml import TFEstimator, errors, tfrecord

SIZES = [0, 1, 5, 40_000, 3, 700, 9, 2, 64, 128]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Files of very different sizes, by directories of labels; Spark has none without a byte."""
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for number, size in enumerate(SIZES):
        directory = root / f"label={number % 3}"
        directory.mkdir(exist_ok=True)
        (directory / f"a {number}%é.png").write_bytes(random.bytes(size))
    return root


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.fixture
def records(spark, place):
    """Rows as TFRecords, written once: arrays, vectors, a null, directories of a column."""
    if int(pyspark.__version__.split(".")[0]) < 4:
        pytest.skip("Spark 3.5 has no Python data sources")
    tfrecord.register(spark)
    if not (place / "gzip").exists():
        rows = spark.read.parquet(str(write_files(place / "parquet")))
        tfrecord.save_as_tfrecords(rows.repartition(5, "id"), str(place / "gzip"), codec="gzip")
        numbers = F.array(*((F.col("id") % n) / (F.col("id") + 1) for n in range(2, 2 + WIDTH)))
        frame = spark.range(0, 40, 1, 1).select(
            "id",
            array_to_vector(numbers).alias("v"),
            F.expr("if(id = 7, null, concat('é', id)) AS s"),
            F.expr("array_repeat(int(id), int(id % 3)) AS many"),
            F.expr("int(id % 2) AS k"),
        )
        tfrecord.save_as_tfrecords(frame, str(place / "mixed"), partition_by="k")
    return place


def shares(args, ctx):
    """Record the paths and contents of each pass."""
    passes = []
    for _ in range(2):
        found = []
        for batch, label in ctx.dataset(batch_size=3):
            pairs = zip(batch["path"].numpy(), batch["x"].numpy(), label.numpy(), strict=True)
            found += [[path.decode(), content.hex(), int(number)] for path, content, number in pairs]
        passes.append(found)
    write(args, ctx, {"passes": passes})


def shares_of(df, directory: Path, path: str) -> list[dict]:
    directory = directory / path
    directory.mkdir()
    inputs = {"path": "path", "content": "x"}
    arguments = {"directory": str(directory)}
    estimator = TFEstimator(trainFn=shares, tfArgs=arguments, inputMapping=inputs, clusterSize=2, verbose=0, seed=3)
    with pytest.warns(errors.TfosMlWarning):
        estimator.setInputPath(path).fit(df)
    return [json.loads(p.read_text()) for p in sorted(directory.glob("*.json"))]


def test_binary_files_are_the_rows_of_spark_in_the_same_order(spark, pictures, tmp_path):
    df = spark.read.format("binaryFile").load(str(pictures))
    fed, direct = (shares_of(df, tmp_path, path) for path in ("spark", "direct"))
    assert direct == fed
    assert sorted(label for node in direct for _, _, label in node["passes"][0]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    contents = sorted(len(content) // 2 for node in direct for _, content, _ in node["passes"][1])
    assert contents == sorted(filter(None, SIZES))


@pytest.mark.parametrize(
    ("condition", "columns"),
    [
        ("true", ["path", "content", "length", "label"]),
        ("length > 4 and label > 0", ["content", "path"]),
        ("label = 1", ["length"]),
        ("path is not null and length in (1, 9)", ["content"]),
    ],
)
def test_binary_files_are_told_filtered_and_numbered_as_spark_does(spark, pictures, condition, columns):
    spark.conf.set("spark.sql.files.openCostInBytes", "8000")
    try:
        df = spark.read.format("binaryFile").load(str(pictures)).filter(condition)
        expected, found = rows_both_ways(df, columns)
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")
    assert found == [tuple(map(plain, row)) for row in expected]
    assert found


def plain(value):
    return bytes(value) if isinstance(value, bytearray) else value


def test_what_nodes_do_not_tell_of_binary_files_goes_through_spark(spark, pictures):
    df = spark.read.format("binaryFile").load(str(pictures))
    reasons = [
        (df.filter("modificationTime is not null"), "nodes do not tell column 'modificationTime' of files"),
        (
            df.withColumnRenamed("modificationTime", "when").filter("path like '%png'"),
            "nodes do not know this condition",
        ),
        (spark.read.format("image").load(str(pictures)), r"nodes do not read files .* \(ImageFileFormat\)"),
    ]
    for frame, reason in reasons:
        column = "image" if "image" in frame.columns else "content"
        text = estimator_of(featuresCol=column, labelCol="label").explainInput(frame)
        assert text.startswith("spark: "), text
        assert re.search(reason, text), text
    text = estimator_of(featuresCol="content", labelCol="label").explainInput(df)
    assert text == "direct: a plain scan of 9 binary file(s); 2 nodes read a share each, and send the others their rows"


@pytest.mark.parametrize(
    "workers", [2, pytest.param(1, marks=pytest.mark.chaos), pytest.param(3, marks=pytest.mark.chaos)]
)
def test_tfrecords_give_the_same_weights_both_ways(spark, records, tmp_path, workers):
    df = spark.read.format("tfrecord").option("maxPartitionBytes", 8000).load(str(records / "gzip"))
    fed, direct = (passes_of(df, tmp_path, path, workers) for path in ("spark", "direct"))
    assert direct == fed
    assert sorted(i for node in direct for i in node["passes"][0]) == list(range(TOTAL))


@pytest.mark.parametrize("condition", ["true", "id > 3 and k = 1", "s is null or size(many) >= 0 and id < 9"])
def test_tfrecords_are_filtered_and_numbered_as_spark_does(spark, records, condition):
    df = spark.read.format("tfrecord").load(str(records / "mixed"))
    if "size" in condition:
        text = estimator_of(featuresCol="id").explainInput(df.filter(condition))
        assert text.startswith("spark: the DataFrame is filtered by ")
        return
    expected, found = rows_both_ways(df.filter(condition), ["id", "s", "many", "k"])
    assert found == expected
    assert len(found) == (40 if condition == "true" else 18)


def test_vectors_of_tfrecords_are_those_of_spark(spark, records, tmp_path):
    df = spark.read.format("tfrecord").load(str(records / "mixed")).withColumnRenamed("v", "features")
    found = [passes_of(df.select("id", "features", "k"), tmp_path, path, labelCol="k") for path in ("spark", "direct")]
    assert found[0] == found[1]


def test_a_damaged_record_is_an_error_of_the_node(spark, records, tmp_path):
    frame = spark.range(50).selectExpr("id", "float(id) AS features").coalesce(1)
    tfrecord.save_as_tfrecords(frame, str(tmp_path / "damaged"))
    (file,) = (tmp_path / "damaged").glob("part*")
    df = spark.read.format("tfrecord").load(str(tmp_path / "damaged"))
    content = bytearray(file.read_bytes())
    content[40] ^= 255
    file.write_bytes(content)
    estimator = estimator_of("direct", featuresCol="features", labelCol="id")
    with pytest.raises(errors.CorruptRecordError, match=r"record 0, at byte 0 .* the checksum"):
        estimator.fit(df)


def test_what_is_told_of_tfrecords(spark, records):
    df = spark.read.format("tfrecord").load(str(records / "gzip"))
    text = estimator_of().explainInput(df)
    told = (
        r"direct: a plain scan of 5 TFRecord file\(s\); 1 of 2 nodes read a share each, and send the others their rows"
    )
    assert re.fullmatch(told, text), text
