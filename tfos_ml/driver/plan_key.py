"""Whether two DataFrames are the same rows: a key of Spark's plan, its settings, and the files that it reads.

It is made of what the JVM of a classic session tells; no job runs. A plan with anything in it whose result may change
while plan and files stay the same, or whose content Spark does not tell, has no key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyspark
from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.hadoop import pyarrow_uri
from tfos_ml.common.redact import redact
from tfos_ml.common.sessions import is_connect
from tfos_ml.data.row_cache import KEY_CHARACTERS
from tfos_ml.driver.file_scan import NotDirectError, class_name, items
from tfos_ml.driver.function_key import SCALA_UDF, Functions, UnknownFunctionError, functions_of, is_deterministic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_FILES = 10_000
_THREADS = 16
_SPARK = "org.apache.spark.sql."
_KNOWN = (
    f"{_SPARK}catalyst.expressions.",
    f"{_SPARK}catalyst.plans.logical.",
    f"{_SPARK}execution.datasources.LogicalRelation",
    "org.apache.spark.ml.linalg.VectorUDT",
)
_OPAQUE = re.compile(
    r"UDF|UDAF|Python|Pandas|InArrow|Subquery(?!Alias)|MapElements|MapPartitions|MapGroups|CoGroup|AppendColumns|"
    r"ScriptTransformation|Reflection|ScalaAggregator|ScalaReducer"
)
_TIME = re.compile(r"\.(Current\w*|Now|LocalTimestamp)$")
_FILES = f"{_SPARK}execution.datasources.HadoopFsRelation"
_LEAVES = (f"{_SPARK}catalyst.plans.logical.Range", f"{_SPARK}catalyst.plans.logical.OneRowRelation")
_RELATION = f"{_SPARK}execution.datasources.LogicalRelation"
_LISTING = f"{_SPARK}execution.datasources.InMemoryFileIndex"
_JVM_ID = re.compile(r'"jvmId":"[0-9a-f-]*"')


def plan_key(rows: DataFrame, described: str) -> str:
    """The key of the rows of a DataFrame and of what is done with them, in hexadecimal digits.

    Raises ``NotDirectError`` with the reason if there is none.
    """
    if is_connect(rows.sparkSession):
        raise NotDirectError("a client of Spark Connect does not see Spark's plan, by which cached rows are found")
    execution = rows._jdf.queryExecution()
    analyzed, optimized = execution.analyzed(), execution.optimizedPlan()
    if not (is_deterministic(analyzed) and is_deterministic(optimized)):
        raise _no_key("has expressions that are not deterministic, as rand() or a function of Scala's")
    canonical = analyzed.canonicalized()
    text = _JVM_ID.sub('"jvmId":""', canonical.toJSON())
    classes = list(_classes(json.loads(text)))
    functions = _functions(rows.sparkSession, canonical, classes.count(SCALA_UDF))
    _check_classes(set(classes) - {SCALA_UDF})
    arguments = [node.argString(2**31 - 1) for node in _nodes(canonical)]
    if any(" more fields" in part for part in arguments):
        raise _no_key("has an expression of more than spark.sql.debug.maxToStringFields parts")
    sources = [_source(leaf) for leaf in items(optimized.collectLeaves())]
    text, *arguments = [_renamed(part, functions.names) for part in (text, *arguments)]
    parts = [pyspark.__version__, described, text, arguments, sources, _settings(rows.sparkSession)]
    if functions.digests:
        parts.append(functions.digests)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:KEY_CHARACTERS]


def named_key(name: str, *described: str) -> str:
    """The key of rows that the user has named, and of what is done with them."""
    return hashlib.sha256(json.dumps(["cacheKey", name, *described]).encode()).hexdigest()[:KEY_CHARACTERS]


def _functions(spark: SparkSession, plan: Any, count: int) -> Functions:
    """The functions of Spark ML in a plan, of which it has so many."""
    if not count:
        return Functions([], {})
    try:
        found = functions_of(spark, plan)
    except UnknownFunctionError as error:
        raise _no_key(f"has a function of Scala's or Java's whose content Spark does not tell ({error})") from None
    if len(found.digests) != count:
        raise _no_key("has a function of Spark ML in a part that Spark does not show")
    return found


def _renamed(text: str, names: dict[str, str]) -> str:
    for name, kept in names.items():
        text = text.replace(name, kept)
    return text


def _no_key(why: str) -> NotDirectError:
    return NotDirectError(f"rows are cached only if it is known when they change, and the plan of the DataFrame {why}")


def _classes(found: Any) -> Iterator[str]:
    """Java classes of all operators and expressions in a plan's JSON."""
    if isinstance(found, dict):
        if isinstance(found.get("class"), str):
            yield found["class"]
        found = list(found.values())
    if isinstance(found, list):
        for part in found:
            yield from _classes(part)


def _check_classes(classes: set[str]) -> None:
    for name in sorted(classes):
        short = name.rpartition(".")[2]
        if _TIME.search(name):
            raise _no_key(f"depends on when and where it runs ({short})")
        if short == "LogicalRDD":
            raise _no_key("has rows of the program itself (createDataFrame or an RDD), which Spark does not tell")
        if not name.startswith(_KNOWN) or _OPAQUE.search(name):
            raise _no_key(f"has a part whose content Spark does not tell ({short})")


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in items(plan.children()):
        yield from _nodes(child)


def _source(leaf: Any) -> list[Any]:
    """What a leaf of a plan reads."""
    if class_name(leaf) in _LEAVES:
        return [class_name(leaf), leaf.argString(2**31 - 1)]
    if class_name(leaf) != _RELATION or class_name(leaf.relation()) != _FILES:
        raise _no_key(f"reads what is no file ({class_name(leaf).rpartition('.')[2]})")
    relation = leaf.relation()
    location, file_format = relation.location(), class_name(relation.fileFormat())
    if not (class_name(location).startswith(_SPARK) and file_format.startswith("org.apache.spark.")):
        raise _no_key(f"reads files in a way that Spark does not tell ({file_format.rpartition('.')[2]})")
    files = list(location.inputFiles())
    stats = _stats([_place(uri) for uri in files])  # places may hold keys of a store, which change
    if class_name(location) == _LISTING and location.sizeInBytes() != sum(size for size, _ in stats):
        raise NotDirectError("files have changed since Spark listed them; read the DataFrame anew")
    options = sorted((pair._1(), pair._2()) for pair in items(relation.options().toSeq()))
    schemas = [relation.dataSchema().json(), relation.partitionSchema().json()]
    return [file_format, options, schemas, sorted(zip(files, stats, strict=True))]


def _place(uri: str) -> str:
    """A path or URI as ``filesystems.open_uri`` takes it."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else pyarrow_uri(uri)


def _stats(files: list[str]) -> list[tuple[int, int]]:
    """Size and modification time, in nanoseconds, of each file."""
    if len(files) > MOST_FILES:
        raise _no_key(f"reads {len(files):,} files, more than {MOST_FILES:,}")
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="stats") as pool:
        return list(pool.map(_stat, files))


def _stat(file: str) -> tuple[int, int]:
    try:
        info = filesystems.request(file, lambda filesystem, path: filesystem.get_file_info(path))
    except OSError as error:
        raise NotDirectError(f"the driver cannot look at {redact(file)}: {redact(error)}") from None
    if info.type != fs.FileType.File or info.mtime_ns is None:
        raise _no_key(f"reads {redact(file)}, whose modification time is not told")
    return info.size, info.mtime_ns


def _settings(spark: SparkSession) -> list[tuple[str, str]]:
    """Settings of the session that may change what a plan gives."""
    given = spark._jsparkSession.conf().getAll().toSeq()
    found = {pair._1(): pair._2() for pair in items(given)}
    kept = {name: value for name, value in found.items() if name.startswith("spark.sql.")}
    kept.pop("spark.sql.warehouse.dir", None)
    kept["spark.sql.session.timeZone"] = spark.conf.get("spark.sql.session.timeZone") or ""
    return sorted(kept.items())
