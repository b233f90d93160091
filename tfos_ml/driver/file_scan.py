"""Whether Spark's plan of a DataFrame is a plain scan of files, and how Spark would split the files.

It is looked at through the JVM of a classic session; no job runs. What is not known to give the same rows, in the same
order, is none: joins, expressions, caches, other formats, plugins that read in another way. ``driver/file_filter.py``
knows which filters nodes can apply.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tfos_ml.common.hadoop import pyarrow_uri
from tfos_ml.common.sessions import is_connect
from tfos_ml.data.file_plan import BINARY_FILE, CSV, JSON, PARQUET, TFRECORD
from tfos_ml.tfrecord.functions import is_registered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CATALYST = "org.apache.spark.sql.catalyst."
_SOURCES = "org.apache.spark.sql.execution.datasources."
_RELATION, _FILES = f"{_SOURCES}LogicalRelation", f"{_SOURCES}HadoopFsRelation"
_FORMATS = {
    f"{_SOURCES}parquet.ParquetFileFormat": PARQUET,
    f"{_SOURCES}binaryfile.BinaryFileFormat": BINARY_FILE,
    f"{_SOURCES}csv.CSVFileFormat": CSV,
    f"{_SOURCES}json.JsonFileFormat": JSON,
}
_PARTITION = f"{_SOURCES}FilePartition"
_V2_RELATION, _V2_SCAN = f"{_SOURCES}v2.DataSourceV2ScanRelation", f"{_SOURCES}v2.BatchScanExec"
_PYTHON_TABLE = f"{_SOURCES}v2.python.PythonTable"
_PROJECT, _FILTER = f"{_CATALYST}plans.logical.Project", f"{_CATALYST}plans.logical.Filter"
_ATTRIBUTE, _ALIAS = f"{_CATALYST}expressions.AttributeReference", f"{_CATALYST}expressions.Alias"
_SCAN = "org.apache.spark.sql.execution.FileSourceScanExec"
_KINDS = {
    "InMemoryRelation": "is cached",
    "LogicalRDD": "is no scan of files",
    "LocalRelation": "is no scan of files",
    "Range": "is no scan of files",
    "DataSourceV2ScanRelation": "is read through a data source of version 2",
    "HiveTableRelation": "is a Hive table",
}
CONSTANTS = {
    "tinyint": "getByte",
    "smallint": "getShort",
    "int": "getInt",
    "bigint": "getLong",
    "float": "getFloat",
    "double": "getDouble",
    "boolean": "getBoolean",
    "string": "getUTF8String",
}
"""Types of what directories may tell, and how Spark's rows give it."""
NO_HOST = "localhost"
"""What Hadoop calls the host of files of which it does not know on which host they are."""
_TOLERANT = ("ignoreCorruptFiles", "ignoreMissingFiles")
_SETTINGS = {  # under which Spark does not read what is in the files, or not by name
    **{f"spark.sql.files.{name}": "false" for name in _TOLERANT},
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.binaryAsString": "false",
}


class NotDirectError(Exception):
    """Nodes cannot read the files of a DataFrame themselves; the text says why."""


@dataclass(frozen=True)
class FileScan:
    """A scan of files, as Spark's plan tells it."""

    format: str
    options: dict[str, str]  # of the format, as they were given
    schema: str = field(repr=False)  # of all columns in files, before any are selected, as JSON
    columns: dict[str, str]  # in the files, or told by their directories, by the DataFrame's columns
    partitions: dict[str, str]  # Spark's types of what directories tell, in Spark's order
    conditions: list[Any]  # expressions of Catalyst of which each row kept fulfils all; no pruning of directories
    attributes: dict[Any, tuple[str, str]]  # name and Spark's type of the columns that these name by id


@dataclass(frozen=True)
class FileSplit:
    """A range of bytes of a file that is in one partition of Spark's scan."""

    partition: int
    uri: str = field(repr=False)  # as ``filesystems.open_uri`` takes it
    start: int
    length: int
    file_size: int  # as Spark has listed the file
    modified: int  # the same, in milliseconds since 1970
    shown: str  # its path as Spark writes it
    constants: tuple[Any, ...] = ()  # what directories tell, as far as it was asked for
    hosts: tuple[str, ...] = ()  # on whose disks it lies, where Spark knows


def file_scan(df: DataFrame) -> FileScan:
    """The scan of files that a DataFrame is.

    Raises ``NotDirectError`` if the DataFrame is anything else.
    """
    if is_connect(df.sparkSession):
        raise NotDirectError("a client of Spark Connect does not see Spark's plan")
    _check_settings(df.sparkSession)
    plan = df._jdf.queryExecution().optimizedPlan()
    renamed: dict[Any, tuple[Any, str]] | None = None  # by id of a column of the DataFrame: that below, and its name
    conditions: list[Any] = []
    while class_name(plan) in (_PROJECT, _FILTER):
        if class_name(plan) == _PROJECT:
            renamed = _through(plan, renamed)
        else:
            conditions += _conjuncts(plan.condition())
        plan = plan.child()
    kind, options, schema, partitions = _source(df.sparkSession, plan)
    attributes = {a.exprId().id(): (a.name(), a.dataType().simpleString()) for a in items(plan.output())}
    columns: dict[str, str] = {}
    for wanted, name in (renamed or {i: (i, n) for i, (n, _) in attributes.items()}).values():
        if wanted not in attributes:
            raise NotDirectError(f"column '{name}' tells of files (_metadata), and is not in them")
        columns[name] = attributes[wanted][0]
    conditions = [c for c in conditions if not _prunes(c, {i for i, (n, _) in attributes.items() if n in partitions})]
    return FileScan(kind, options, schema, columns, partitions, conditions, attributes)


def _conjuncts(condition: Any) -> list[Any]:
    if class_name(condition) != f"{_CATALYST}expressions.And":
        return [condition]
    return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]


def _prunes(condition: Any, partitions: set[Any]) -> bool:
    """Whether a condition is about directories alone: Spark then leaves out files before it splits them."""
    named = {a.exprId().id() for a in items(condition.references().toSeq())}
    return bool(named) and named <= partitions and condition.deterministic() and not _has_query(condition)


def _has_query(expression: Any) -> bool:
    return "Subquery" in class_name(expression) or any(map(_has_query, items(expression.children())))


def _check_settings(spark: SparkSession) -> None:
    for name, expected in _SETTINGS.items():
        value = spark.conf.get(name, expected) or expected
        if value.lower() != expected:
            raise NotDirectError(f"{name}={value}")


def _through(project: Any, above: dict[Any, tuple[Any, str]] | None) -> dict[Any, tuple[Any, str]]:
    """Columns of the DataFrame by the columns below a projection, which may do no more than select and rename."""
    below: dict[Any, Any] = {}
    names: dict[Any, str] = {}
    for expression in items(project.projectList()):
        source = expression.child() if class_name(expression) == _ALIAS else expression
        if class_name(source) != _ATTRIBUTE:
            raise NotDirectError(f"column '{expression.name()}' is computed: {source.sql()}")
        below[expression.exprId().id()] = source.exprId().id()
        names[expression.exprId().id()] = expression.name()
    if above is None:
        return {i: (below[i], names[i]) for i in below}
    return {i: (below[wanted], name) for i, (wanted, name) in above.items()}


def _source(spark: SparkSession, plan: Any) -> tuple[str, dict[str, str], str, dict[str, str]]:
    """Of a leaf of a plan: the format, its options, the schema of files, and Spark's types of what directories tell."""
    kind = class_name(plan).rpartition(".")[2]
    if class_name(plan) == _V2_RELATION and class_name(plan.relation().table()) == _PYTHON_TABLE:
        if plan.relation().table().name() != TFRECORD or not is_registered(spark):
            raise NotDirectError("the DataFrame is read through a data source that nodes do not know")
        options = dict(plan.relation().options().asCaseSensitiveMap())
        return TFRECORD, options, plan.relation().schema().json(), {}
    if class_name(plan) != _RELATION:
        raise NotDirectError(f"the DataFrame {_KINDS.get(kind, 'is more than a selection of columns')} ({kind})")
    relation = plan.relation()
    if class_name(relation) != _FILES:
        raise NotDirectError("the DataFrame is no scan of files")
    found = class_name(relation.fileFormat())
    if found not in _FORMATS:
        raise NotDirectError(f"nodes do not read files of this format themselves ({found.rpartition('.')[2]})")
    if relation.bucketSpec().isDefined():
        raise NotDirectError("the table is bucketed")
    options = {pair._1().lower(): pair._2() for pair in items(relation.options().toSeq())}
    for name in _TOLERANT:
        if options.get(name.lower(), "false").lower() != "false":
            raise NotDirectError(f"the files are read with {name}={options[name.lower()]}")
    partitions = {f.name(): f.dataType().simpleString() for f in items(relation.partitionSchema().toSeq())}
    return _FORMATS[found], options, relation.dataSchema().json(), partitions


def tasks_of(rows: DataFrame) -> int:
    """Number of tasks of a plain scan of a data source of version 2; no job runs.

    Raises ``NotDirectError`` if Spark reads it otherwise.
    """
    execution = rows._jdf.queryExecution()
    _check_leaf(execution, _V2_SCAN)
    return len(execution.toRdd().partitions())


def _check_leaf(execution: Any, expected: str) -> None:
    leaves = [class_name(leaf) for leaf in items(execution.executedPlan().collectLeaves())]
    if leaves != [expected]:
        raise NotDirectError(f"Spark reads the files with {' and '.join(n.rpartition('.')[2] for n in leaves)}")


def splits(rows: DataFrame, constants: Sequence[tuple[int, str]] = ()) -> list[FileSplit]:
    """How Spark splits the files of a plain scan, in the order of partitions, and of files within one; no job runs.

    `constants` are the numbers and types of the columns told by directories whose values are wanted. Raises
    ``NotDirectError`` if Spark reads them otherwise.
    """
    execution = rows._jdf.queryExecution()
    _check_leaf(execution, _SCAN)
    found = []
    for partition in execution.toRdd().partitions():
        if class_name(partition) != _PARTITION:
            raise NotDirectError(f"Spark reads the files by {class_name(partition).rpartition('.')[2]}")
        found += [_split(partition.index(), file, constants) for file in partition.files()]
    return found


def _split(partition: int, file: Any, constants: Sequence[tuple[int, str]]) -> FileSplit:
    path = file.filePath().toPath()
    uri = path.toUri()
    place = uri.getPath() if uri.getScheme() in (None, "file") else pyarrow_uri(uri.toString())
    told = tuple(_constant(file.partitionValues(), number, kind) for number, kind in constants)
    size, modified = file.fileSize(), file.modificationTime()
    hosts = tuple(sys.intern(host) for host in file.locations() if host != NO_HOST)
    return FileSplit(partition, place, file.start(), file.length(), size, modified, path.toString(), told, hosts)


def _constant(row: Any, number: int, kind: str) -> Any:
    """A value of a row of Spark's own, of one of ``CONSTANTS``."""
    if row.isNullAt(number):
        return None
    value = getattr(row, CONSTANTS[kind])(number)
    return value.toString() if kind == "string" else value


def class_name(thing: Any) -> str:
    """The class of a Java object."""
    name: str = thing.getClass().getName()
    return name


def items(sequence: Any) -> Iterator[Any]:
    """Of a Scala sequence."""
    return (sequence.apply(i) for i in range(sequence.size()))
