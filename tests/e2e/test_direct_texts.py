"""Nodes that read CSV and JSON files themselves: the rows of Spark, or none where it is not certain what Spark reads."""

from __future__ import annotations

import gzip
import json
import re
import warnings
from pathlib import Path

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
