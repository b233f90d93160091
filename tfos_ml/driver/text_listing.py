"""CSV and JSON files of a scan: whether Spark reads them by the rules that nodes know, and the splits of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from tfos_ml.data.file_plan import CSV, FilePiece, PlannedFile
from tfos_ml.data.text_format import TextFormat
from tfos_ml.driver.file_listing import Listing, look_at_each
from tfos_ml.driver.file_scan import FileScan, FileSplit, NotDirectError, class_name
from tfos_ml.driver.parquet_listing import Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTING_OPTIONS = ("path", "basepath", "pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter")
_OPTIONS = {*_LISTING_OPTIONS, "mode", "samplingratio"}
"""Those that do not change what certain text means, since its schema is known and no line is malformed."""
_CSV_OPTIONS = {*_OPTIONS, "header", "inferschema", "sep", "delimiter"}
_DELIMITERS = {"\\t": "\t", **{c: c for c in "\t,;|:~^"}}
_MOST_FIELDS = 20_480  # of Spark's option maxColumns
_SETTINGS = re.compile(r"(?i)spark\.sql\..*(csv|json|corruptrecord|charset|linerecordreader)")
_LONGEST_LINE = "mapreduce.input.linerecordreader.line.maxlength"
_CODECS = {"org.apache.hadoop.io.compress.GzipCodec": "gzip"}


def text_listing(
    spark: SparkSession,
    scan: FileScan,
    found: Sequence[FileSplit],
    kinds: Mapping[str, Kind],
    told: Sequence[tuple[str, str]],
) -> Listing:
    """The splits of files, whose columns are of some kinds; the values of those in `told` are told beforehand."""
    settings = spark._jsparkSession.sessionState().newHadoopConf()
    _check_settings(spark, settings)
    directories = {name for name, _ in told}
    text = _text_format(scan, {name: kind for name, kind in kinds.items() if name not in directories})
    codecs = {shown: _codec(spark, settings, shown) for shown in {split.shown for split in found}}

    def planned(filesystem: fs.FileSystem, path: str, split: FileSplit, info: fs.FileInfo) -> PlannedFile:
        return PlannedFile(split.uri, info.size, info.mtime_ns, split.constants, compression=codecs[split.shown])

    files = look_at_each(found, planned)
    numbers = {uri: number for number, uri in enumerate(files)}
    pieces = tuple(
        FilePiece(split.partition, numbers[split.uri], (), None, split.length, split.start, split.hosts)
        for split in found
    )
    return Listing(tuple(files.values()), pieces, tuple(told), text)


def _check_settings(spark: SparkSession, hadoop: Any) -> None:
    given = spark._jsparkSession.conf().getAll().toSeq()
    for name in (given.apply(i)._1() for i in range(given.size())):
        if _SETTINGS.match(name):
            raise NotDirectError(f"{name}={spark.conf.get(name)}")
    if hadoop.get(_LONGEST_LINE):
        raise NotDirectError(f"{_LONGEST_LINE}={hadoop.get(_LONGEST_LINE)}")


def _codec(spark: SparkSession, hadoop: Any, shown: str) -> str | None:
    """How Spark decompresses a file, as pyarrow names it; None if it does not."""
    jvm: Any = spark._jvm
    codec = jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(hadoop).getCodec(
        jvm.org.apache.hadoop.fs.Path(shown)
    )
    if codec is None:
        return None
    if class_name(codec) not in _CODECS:
        raise NotDirectError(f"nodes do not decompress files of {class_name(codec).rpartition('.')[2]}")
    return _CODECS[class_name(codec)]


def _text_format(scan: FileScan, kinds: Mapping[str, Kind]) -> TextFormat:
    fields = json.loads(scan.schema)["fields"]
    names = [field["name"] for field in fields]
    _check_fields(scan, fields, names)
    if not kinds:
        raise NotDirectError("no column of the files themselves is read")
    types = {name: _read_as(name, kind, scan.format) for name, kind in kinds.items()}
    known = _CSV_OPTIONS if scan.format == CSV else _OPTIONS
    unknown = next((f"{name}={value}" for name, value in scan.options.items() if name not in known), None)
    if unknown:
        raise NotDirectError(f"the files are read with {unknown}")
    if scan.format != CSV:
        return TextFormat(types)
    return TextFormat(types, tuple(names), _delimiter(scan.options), _is_true(scan.options.get("header")))


def _check_fields(scan: FileScan, fields: Iterable[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Raise if columns come otherwise than from the fields of lines."""
    corrupt = "_corrupt_record"  # the name by default; other settings are refused
    if corrupt in names:
        raise NotDirectError(f"'{corrupt}' holds malformed records")
    if {name.lower() for name in names} & {name.lower() for name in scan.partitions}:
        raise NotDirectError("a column is in files and told by directories")
    if any("EXISTS_DEFAULT" in field["metadata"] for field in fields):
        raise NotDirectError("columns of the table have defaults")
    if len(names) > _MOST_FIELDS:
        raise NotDirectError(f"there are {len(names):,} columns, more than {_MOST_FIELDS:,}")


def _read_as(name: str, kind: Kind, form: str) -> pa.DataType:
    inner = kind.arrow
    while inner is not None and form != CSV and pa.types.is_list(inner):
        inner = inner.value_type
    if inner is None or pa.types.is_nested(inner) or pa.types.is_binary(inner):
        raise NotDirectError(f"nodes do not read columns such as '{name}', {kind.spark}, from text")
    return kind.arrow


def _delimiter(options: Mapping[str, str]) -> str:
    given = {options[name] for name in ("sep", "delimiter") if name in options} or {","}
    if len(given) > 1 or not given <= set(_DELIMITERS):
        raise NotDirectError(f"the files are read with sep={' and '.join(map(repr, sorted(given)))}")
    return _DELIMITERS[given.pop()]


def _is_true(given: str | None) -> bool:
    return (given or "false").lower() == "true"
