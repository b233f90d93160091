"""Nodes that read CSV and JSON files themselves: the rows of Spark, or none where these are not certain."""

from __future__ import annotations

import bz2
import gzip
import json
import re

import pytest
from direct_rows import TOTAL, estimator_of, partition_bytes, passes_of, rows_both_ways, table

from tfos_ml import errors

CSV_SCHEMA = "id LONG, label DOUBLE, held BOOLEAN, name STRING, x FLOAT"
JSON_SCHEMA = "features ARRAY<FLOAT>, id LONG, label DOUBLE, held BOOLEAN, name STRING, weight FLOAT"


def csv_lines(rows):
    yield "id,label,held,name,x"
    for row in rows:
        yield f"{row['id']},{row['label']!r},{str(row['held']).lower()},{row['name']},{row['features'][0]!r}"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The same rows as CSV and JSON, in files of which one is compressed, one empty, one without a last line end."""
    root = tmp_path_factory.mktemp("texts")
    files = [(0, 130, "\r\n"), (130, 1, "\n"), (131, 57, "\n"), (188, 300, "\n")]
    for number, (first, count, line_end) in enumerate(files):
        rows = table(first, count).to_pylist()
        lines = {"csv": csv_lines(rows), "json": map(json.dumps, rows)}
        for form, found in lines.items():
            text = (line_end.join(found) + line_end * (number < 3)).encode()
            path = root / form / f"part {number}%é.{form}"
            path.parent.mkdir(exist_ok=True)
            if number == 2:
                path.with_suffix(f".{form}.gz").write_bytes(gzip.compress(text[:700]) + gzip.compress(text[700:]))
            else:
                path.write_bytes(text)
            path.with_stem("empty").touch()
    return root


def count_rows(args, ctx):
    sum(len(batch) for batch in ctx.dataset(batch_size=2))


def csv_of(spark, texts, schema=CSV_SCHEMA):
    return spark.read.schema(schema).csv(str(texts / "csv"), header=True)


def json_of(spark, texts):
    return spark.read.schema(JSON_SCHEMA).json(str(texts / "json"))


def test_csv_and_json_give_the_same_weights_both_ways(spark, texts, tmp_path):
    vectors = [csv_of(spark, texts).withColumnRenamed("x", "features"), json_of(spark, texts)]
    for number, df in enumerate(vectors):
        directory = tmp_path / str(number)
        directory.mkdir()
        with partition_bytes(spark, 3000):
            fed, direct = (passes_of(df, directory, path) for path in ("spark", "direct"))
        assert direct == fed
        assert sorted(i for node in direct for i in node["passes"][0]) == list(range(TOTAL))


@pytest.mark.parametrize("size", [5, 7, 16, 61])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_splits_anywhere_in_a_file_have_the_lines_of_spark(spark, tmp_path, size, line_end):
    lines = ["id,x", "", "1,0.5", "22,", "333,1.5", "", "4,1e3", "55555,0.1", "6," + "1" * 50, "", "7,7"]
    (tmp_path / "a.csv").write_text(line_end.join(lines) + line_end, newline="")
    (tmp_path / "b.csv").write_text(line_end.join(lines[:4]), newline="")
    objects = [json.dumps({"id": i, "x": i / 3}) for i in range(7)]
    (tmp_path / "a.json").write_text(line_end.join(["", *objects[:3], "", *objects[3:]]), newline="")
    rows = spark.read.schema("id LONG, x DOUBLE").json(f"{tmp_path}/a.json")
    with partition_bytes(spark, size):
        csv = spark.read.schema("id LONG, x DOUBLE").csv(f"{tmp_path}/*.csv", header=True)
        for df, count in [(csv, 9), (rows, 7)]:
            expected, found = rows_both_ways(df, ["id", "x"])
            assert found == expected
            assert len(found) == count


KEPT = [
    ("id > 40 and x > 0.0", "csv"),
    ("not (x < 0.5 or held) and label != 0.0", "csv"),
    ("name = 'row 7 é' or k = 2 and held", "csv"),
    ("x in (0.5, 0.84147098) or k is null", "csv"),
    ("k = 1", "csv"),
    ("held and label >= 0.0", "json"),
    ("name > 'row 3' or id in (1, 2, 500)", "json"),
    ("k < 2 and name is not null", "json"),
]


@pytest.fixture(scope="module")
def partitioned(texts):
    """The same files in directories of a column."""
    root = texts / "partitioned"
    for form in ("csv", "json"):
        files = sorted(file for file in (texts / form).iterdir() if file.stat().st_size)
        for number, (file, k) in enumerate(zip(files, ["1", "2", "__HIVE_DEFAULT_PARTITION__", "2"], strict=True)):
            directory = root / form / f"k={k}"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"{number}{''.join(file.suffixes)}").write_bytes(file.read_bytes())
    return root


@pytest.mark.parametrize(("condition", "form"), KEPT)
def test_rows_are_filtered_and_directories_told_as_spark_does(spark, partitioned, condition, form):
    read = spark.read.option("mode", "FAILFAST").schema((JSON_SCHEMA if form == "json" else CSV_SCHEMA) + ", k INT")
    df = read.json(str(partitioned / form)) if form == "json" else read.csv(str(partitioned / form), header=True)
    with partition_bytes(spark, 9000):
        expected, found = rows_both_ways(df.filter(condition), ["id", "name", "label", "k"])
    assert found == expected
    assert found


def test_what_is_not_certain_from_the_plan_goes_through_spark(spark, texts, tmp_path):
    path = str(texts / "csv")
    (tmp_path / "a.csv.bz2").write_bytes(bz2.compress(b"1,2\n"))

    def csv(schema=CSV_SCHEMA, **options):
        return spark.read.schema(schema).options(**options).csv(path)

    reasons = [
        (csv(quote="'"), "the files are read with quote='"),
        (csv(sep="||"), r"the files are read with sep='\|\|'"),
        (csv(nullValue="-"), "the files are read with nullvalue=-"),
        (csv(multiLine=True), "the files are read with multiline=true"),
        (csv(encoding="ISO-8859-1"), "the files are read with encoding=ISO-8859-1"),
        (csv(f"{CSV_SCHEMA}, _corrupt_record STRING"), "'_corrupt_record' holds malformed records"),
        (csv("id DECIMAL(9, 2)"), r"Spark converts column 'id' of type decimal\(9,2\)"),
        (spark.read.schema("id BINARY").json(path), "nodes do not read columns such as 'id', binary, from text"),
        (csv().filter("id % 2 = 0"), "nodes do not know this condition"),
        (spark.read.schema("id LONG").csv(str(tmp_path)), "nodes do not decompress files of BZip2Codec"),
        (spark.read.schema("id DATE").json(path), "Spark converts column 'id' of type date"),
        (spark.read.schema("id LONG").json(path, allowComments=True), "the files are read with allowcomments=true"),
    ]
    for df, reason in reasons:
        text = estimator_of(featuresCol="id").explainInput(df.select("id"))
        assert text.startswith("spark: "), text
        assert re.search(reason, text), text


def test_settings_that_change_parsers_go_through_spark(spark, texts):
    df = csv_of(spark, texts)
    name = "spark.sql.csv.parser.columnPruning.enabled"
    spark.conf.set(name, "false")
    try:
        assert estimator_of(featuresCol="id").explainInput(df) == f"spark: {name}=false"
    finally:
        spark.conf.unset(name)
    spark.sql(f"CREATE TABLE texts USING csv OPTIONS (header true, delimiter ',') LOCATION '{texts / 'csv'}'")
    try:
        for frame in (df, spark.table("texts"), spark.read.csv(str(texts / "csv"), header=True, inferSchema=True)):
            told = "direct: a plain scan of 4 CSV file(s), if it is certain what Spark reads in them; "
            assert estimator_of(featuresCol="id").explainInput(frame).startswith(told)
    finally:
        spark.sql("DROP TABLE texts")


def test_text_that_is_not_certain_is_fed_by_spark_or_an_error(spark, tmp_path):
    lines = [f"{i},{i / 7},{i % 2}" for i in range(50)]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "b.csv").write_text("\n".join(lines).replace("\n3,", '\n"3",') + "\n")
    df = spark.read.schema("id LONG, features DOUBLE, label DOUBLE").csv(str(tmp_path))
    found = r"b\.csv has, at byte 55, what Spark may read otherwise than nodes do: the character '\"'\. Set inputPath="
    with pytest.raises(errors.UncertainTextError, match=found):
        estimator_of("direct", inputMapping={"id": "id", "features": "x"}, maxRestarts=3).fit(df)
    directory = tmp_path / "out"
    directory.mkdir()
    with pytest.warns(UserWarning, match=r"The fit began again, with rows that Spark feeds: .*b\.csv has, at byte 55"):
        auto = passes_of(df, directory, "auto")
    assert auto == passes_of(df, directory, "spark")


def test_a_fit_that_began_again_says_so(spark, tmp_path):
    (tmp_path / "a.json").write_text('{"id": 1}\n[{"id": 2}, {"id": 3}]\n{"id": 4}\n')
    df = spark.read.schema("id LONG").json(str(tmp_path))
    estimator = estimator_of(featuresCol="id", tfArgs={"directory": str(tmp_path)}, trainFn=count_rows)
    with pytest.warns(UserWarning, match="The fit began again"):
        summary = estimator.fit(df).summary
    assert summary.rows == 4
    assert "a.json has, at byte 10, what Spark may read otherwise" in summary.fedBecause
    assert summary.timeline["failed attempts"] > 0


def test_a_text_file_that_has_changed_is_an_error(spark, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,2\n" * 100)
    df = spark.read.schema("id LONG, label LONG").csv(str(path))
    estimator = estimator_of("direct", featuresCol="id", trainFn=count_rows)
    estimator.explainInput(df)
    path.write_text("1,2\n" * 101)
    with pytest.raises(errors.InputPathError, match=r"a\.csv has changed since Spark listed the files"):
        estimator.fit(df)
