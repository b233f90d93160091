"""Texts of any kind, read by Spark and as nodes read them: either the same values, or a refusal."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfos_ml import errors
from tfos_ml.agent.file_rows import reader_of
from tfos_ml.data.file_plan import CSV, JSON, FilePiece, FilePlan, PlannedFile
from tfos_ml.data.text_format import TextFormat

KINDS = {
    "t": ("TINYINT", pa.int8()),
    "h": ("SMALLINT", pa.int16()),
    "i": ("INT", pa.int32()),
    "l": ("BIGINT", pa.int64()),
    "f": ("FLOAT", pa.float32()),
    "d": ("DOUBLE", pa.float64()),
    "b": ("BOOLEAN", pa.bool_()),
    "s": ("STRING", pa.string()),
    "al": ("ARRAY<BIGINT>", pa.list_(pa.int64())),
    "af": ("ARRAY<FLOAT>", pa.list_(pa.float32())),
    "as": ("ARRAY<STRING>", pa.list_(pa.string())),
    "ad": ("ARRAY<ARRAY<DOUBLE>>", pa.list_(pa.list_(pa.float64()))),
}
BATCHES = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TEXTS_EACH = 20
"""Read by one job of Spark's."""


def float32_of(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def halfway(bits, more):
    """The digits of a number halfway between two floats, or a little above."""
    return f"{(float32_of(bits) + float32_of(bits + 1)) / 2:.40f}".rstrip("0") + more


DECENT_FLOATS = (
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr)
    | st.decimals(-1000, 1000, places=30).map(str)
    | st.integers(-(10**18), 10**18).map(str)
)
DECENT = {
    **{name: st.integers(-(2**bits), 2**bits - 1).map(str) for name, bits in zip("thil", (7, 15, 31, 63), strict=True)},
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr) | st.decimals(-9, 9, places=9).map(str),
    "d": DECENT_FLOATS,
    "b": st.sampled_from(["true", "false"]),
}
ODD_NUMBERS = """-0 0 00 007 -0.0 +1 1. .5 -.5 - . 1e5 1E+05 1.0 1e2 1f 1d 1_0 0x1F -0x1 0X1p3 16777217 \uff12
    1e-400 1e400 1e-46 1e40 3.5e38 5e-324 2e-45 nan NaN -NaN inf Inf -Inf INF Infinity -Infinity"""
ODD_WORDS = "true false True FALSE tRue t yes null NULL None"
ODD = (
    st.integers(-130, 130).map(str)
    | st.integers(-(2**31) - 2, 2**31 + 2).map(str)
    | st.integers(-(2**63) - 2, 2**63 + 2).map(str)
    | DECENT_FLOATS
    | st.builds(halfway, st.integers(0x3F000000, 0x40400000), st.sampled_from(["", "0", "1", "0000000001"]))
    | st.integers(1, 320).map(lambda digits: "7" * digits)
    | st.sampled_from(ODD_NUMBERS.split())
    | st.sampled_from(ODD_WORDS.split())
)
LINE_ENDS = st.sampled_from(["\n", "\n", "\n", "\r\n"])


def damaged(texts, pieces):
    """Texts as bytes, some of them with something put somewhere."""
    added = [b"\xff", b"\xe2\x82", b"\xc0\x80", *(piece.encode() for piece in pieces)]
    return st.builds(_put, texts.map(str.encode), st.integers(0, 2**20), st.sampled_from([b""] * len(added) + added))


def _put(text, place, piece):
    place %= len(text) + 1
    return text[:place] + piece + text[place:]


WORDS = st.text(st.sampled_from("ab é\u20ac\U0001f600'#-0x\xa0|;:"), max_size=6)
CSV_DECENT = {name: st.just("") | field for name, field in DECENT.items()} | {"s": WORDS.map(str.strip)}


DAMAGE = ["\r", "\n", '"', "\\", " ", "\t", "\0", ","]
"""Put anywhere into texts."""


def csv_texts(columns, separator):
    """Lines of fields; of some texts any fields, and perhaps damaged."""
    decent = st.tuples(*(CSV_DECENT[name] for name in columns)).map(separator.join)
    odd = st.tuples(*(CSV_DECENT[name] | WORDS | ODD for name in columns)).map(separator.join)
    ends = LINE_ENDS | st.sampled_from(["\n\n", "\r\n\r\n", ""])
    pieces = [
        *DAMAGE,
        "\x0b",
        "\x1a",
        "\ufeff",
        "\x85",
        "\u2028",
        "x",
        "#",
        "-",
        "0x",
    ]
    return (
        st.lists(st.builds(str.__add__, decent, LINE_ENDS), max_size=5).map("".join).map(str.encode)
        | damaged(st.lists(st.builds(str.__add__, decent, ends), max_size=4).map("".join), pieces)
        | damaged(st.lists(st.builds(str.__add__, odd, ends), max_size=3).map("".join), pieces)
    )


STRINGS = st.text(st.sampled_from('aé\U0001f600x "\\\n\t{}[],:/\0') | st.characters(codec="utf-8"), max_size=5)
QUOTED = st.builds(lambda text, is_ascii: json.dumps(text, ensure_ascii=is_ascii), STRINGS, st.booleans())
ESCAPES = st.sampled_from(
    ["\\ud800", "\\udc00x", "\\ud83d\\ude00", "\\u0041", "\\/", "\\x", "\t", "\x7f", "NaN", "1.5", "true"]
)
SCALARS = (
    ODD | QUOTED | ESCAPES.map(lambda text: f'"{text}"') | st.sampled_from(["null", "[]", "{}", "'a'", '"\ufeff"'])
)


def listed(values):
    return st.lists(values | st.just("null"), max_size=3).map(lambda items: "[" + ", ".join(items) + "]")


def objects(values):
    return st.lists(st.builds("{}:{}".format, QUOTED, values), max_size=2).map(
        lambda items: "{" + ",".join(items) + "}"
    )


NESTED = st.recursive(SCALARS, lambda inner: listed(inner) | objects(inner), max_leaves=5)
JSON_DECENT = DECENT | {"s": QUOTED, "al": listed(DECENT["l"]), "af": listed(DECENT["f"]), "as": listed(QUOTED)}
JSON_DECENT |= {"ad": listed(listed(DECENT["d"])), "other": NESTED}
SPACE = st.sampled_from(["", "", "", " ", "\t", "  "])


def json_texts(columns):
    """Lines of objects; in some texts any values, repeated names, damage, or more than objects."""
    names = [*columns, "other"]
    decent = st.permutations(names).flatmap(
        lambda order: st.tuples(*(st.builds('"{}"{}:{}'.format, st.just(n), SPACE, JSON_DECENT[n]) for n in order[:3]))
    )
    any_pair = st.sampled_from([*names, "S", "d ", "\\u0073", ""]).flatmap(
        lambda name: st.builds('"{}":{}{}'.format, st.just(name), SPACE, JSON_DECENT.get(name, NESTED) | NESTED)
    )
    lines = st.builds("{{{}{}}}".format, SPACE, decent.map(",".join))
    odd = st.builds("{{{}}}".format, st.lists(any_pair, max_size=3).map(",".join))
    around = [
        "{}",
        "{}",
        "{}",
        "null",
        "[]",
        "[{}]",
        "{}{}",
        "{} x",
        " {}",
        "{} ",
        "",
        "{} null",
        "1",
        "{}{{",
        "{} {{}}",
    ]
    odd = st.builds(lambda line, frame: frame.format(line, line), odd | lines, st.sampled_from(around))
    pieces = [
        *DAMAGE,
        "}",
        "{",
        "]",
        "\ufeff",
        "/*c*/",
        "null",
        ",null",
        "1",
        "-",
        "NaN",
    ]
    return (
        st.lists(st.builds(str.__add__, lines, LINE_ENDS), max_size=3).map("".join).map(str.encode)
        | damaged(st.lists(st.builds(str.__add__, lines, LINE_ENDS), max_size=3).map("".join), pieces)
        | damaged(st.lists(st.builds(str.__add__, odd, LINE_ENDS | st.just("")), max_size=3).map("".join), pieces)
    )


class Comparison:
    """Reads many small files by Spark at once, and one by one as nodes do."""

    def __init__(self, spark, directory: Path, form: str, columns, wanted=None, **options):
        self._spark, self._directory, self._form, self._options = spark, directory, form, options
        self._schema = ", ".join(f"{name} {KINDS[name][0]}" for name in columns)
        self._wanted = list(wanted or columns)
        types = {name: KINDS[name][1] for name in self._wanted}
        self._text = TextFormat(types, tuple(columns), options.get("sep", ","), options.get("header") == "true")
        self._jobs = 0
        self.rows = 0  # that were the same

    def check(self, texts: list[bytes]) -> list[str]:
        """Raise if one is read otherwise; returns for each what has been found in it, if it is not read."""
        self._jobs += 1
        directory = self._directory / str(self._jobs)
        directory.mkdir()
        for number, text in enumerate(texts):
            (directory / f"{number}.text").write_bytes(text)
        expected = self._rows_of_spark(directory)
        return [self._compare(directory / f"{n}.text", expected[f"{n}.text"]) for n in range(len(texts))]

    def _compare(self, file, expected):
        try:
            found = self._rows_of_node(file)
        except errors.UncertainTextError as error:
            return error.message
        assert list(map(exactly, found)) == list(map(exactly, expected)), file.read_bytes()
        self.rows += len(found)
        return ""

    def _rows_of_spark(self, directory):
        reader = self._spark.read.schema(self._schema).options(**self._options)
        rows = reader.format(self._form).load(str(directory)).select("_metadata.file_name", *self._wanted).collect()
        by_file = defaultdict(list)
        for name, *values in rows:
            by_file[name].append(values)
        return by_file

    def _rows_of_node(self, file):
        info = file.stat()
        planned = PlannedFile(str(file), info.st_size, info.st_mtime_ns)
        pieces = (FilePiece(0, 0, (), None, info.st_size),)
        plan = FilePlan((planned,), pieces, tuple(self._wanted), format=self._form, decoding=self._text)
        (unit,) = plan.units(1)
        return [list(row.values()) for _, batch in reader_of(plan).read(unit) for row in batch.to_pylist()]


def exactly(row):
    """Values with floats as their bits."""
    return [exactly(v) if isinstance(v, list) else v.hex() if isinstance(v, float) else v for v in row]


def compare_many(comparison, texts):
    """Compare texts that Hypothesis makes up."""

    @BATCHES
    @given(st.lists(texts, min_size=1, max_size=TEXTS_EACH))
    def compare(batch):
        comparison.check(batch)

    compare()
    assert comparison.rows > 5


CSV_COLUMNS = {
    "thil": {},
    "fd": {},
    "bs": {"header": "true"},
    "s": {"header": "true"},
    "d": {},
    "sd": {"wanted": "d"},
    "is": {"wanted": "s", "header": "true"},
    "si": {"sep": "\t", "header": "true"},
    "fs": {"sep": ";"},
}
JSON_COLUMNS = ["thil", "fd", "bs", ("al", "af", "as", "ad")]


@pytest.mark.parametrize("columns", CSV_COLUMNS)
def test_csv_is_read_as_spark_reads_it_or_not_at_all(spark, tmp_path, columns):
    options = CSV_COLUMNS[columns]
    comparison = Comparison(spark, tmp_path, CSV, columns, **options)
    compare_many(comparison, csv_texts(columns, options.get("sep", ",")))


@pytest.mark.parametrize("columns", JSON_COLUMNS, ids="-".join)
def test_json_is_read_as_spark_reads_it_or_not_at_all(spark, tmp_path, columns):
    comparison = Comparison(spark, tmp_path, JSON, columns)
    compare_many(comparison, json_texts(columns))


def test_what_exceeds_limits_of_spark_is_not_read(spark, tmp_path):
    comparison = Comparison(spark, tmp_path, JSON, "d")
    texts = [
        b'{"d":1,"other":%s}' % (b"7" * 1001),
        b'{"other":%s0%s,"d":1}' % (b"[" * 1001, b"]" * 1001),
        b'{"%s":0,"d":1}' % (b"n" * 50_001),
        b'{"d":0.%s}' % (b"7" * 1001),
    ]
    assert all(comparison.check(texts))
    fine = [
        b'{"d":1,"other":%s}' % (b"7" * 200),
        b'{"other":%s0%s,"d":1}' % (b"[" * 800, b"]" * 800),
        b'{"%s":"%s","d":1}' % (b"n" * 30_000, b"x" * 60_000),
    ]
    assert not any(comparison.check(fine))
    assert comparison.rows == 3


def test_a_text_that_is_another_than_planned_is_an_error(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"1\n2\n")
    file = PlannedFile(str(path), 5, path.stat().st_mtime_ns)
    plan = FilePlan((file,), (FilePiece(0, 0, (), None, 5),), ("l",), format=CSV, decoding=TextFormat({}, ("l",)))
    with pytest.raises(errors.FilesChangedError, match=r"a\.csv had 5 bytes .* has 4 bytes"):
        list(reader_of(plan).read(plan.units(1)[0]))
