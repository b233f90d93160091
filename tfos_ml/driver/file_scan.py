"""Whether Spark's plan of a DataFrame is a plain scan of Parquet files, and how Spark would split the files.

It is looked at through the JVM of a classic session; no job runs. What is not known to give the same rows, in the same
order, is none: filters, joins, expressions, caches, other formats, plugins that read in another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tfos_ml.common.hadoop import pyarrow_uri
from tfos_ml.common.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CATALYST = "org.apache.spark.sql.catalyst."
_SOURCES = "org.apache.spark.sql.execution.datasources."
_RELATION, _FILES = f"{_SOURCES}LogicalRelation", f"{_SOURCES}HadoopFsRelation"
_PARQUET, _PARTITION = f"{_SOURCES}parquet.ParquetFileFormat", f"{_SOURCES}FilePartition"
_PROJECT = f"{_CATALYST}plans.logical.Project"
_ATTRIBUTE, _ALIAS = f"{_CATALYST}expressions.AttributeReference", f"{_CATALYST}expressions.Alias"
_SCAN = "org.apache.spark.sql.execution.FileSourceScanExec"
_KINDS = {
    "Filter": "filters rows",
    "InMemoryRelation": "is cached",
    "LogicalRDD": "is no scan of files",
    "LocalRelation": "is no scan of files",
    "Range": "is no scan of files",
    "DataSourceV2ScanRelation": "is read through a data source of version 2",
    "HiveTableRelation": "is a Hive table",
}
_TOLERANT = ("ignoreCorruptFiles", "ignoreMissingFiles")
_SETTINGS = {  # under which Spark does not read what is in the files, or not by name
    **{f"spark.sql.files.{name}": "false" for name in _TOLERANT},
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.binaryAsString": "false",
}


class NotDirectError(Exception):
    """Nodes cannot read the files of a DataFrame themselves; the text says why."""


@dataclass(frozen=True)
class FileSplit:
    """A range of bytes of a file that is in one partition of Spark's scan."""

    partition: int
    uri: str = field(repr=False)  # as ``filesystems.open_uri`` takes it
    start: int
    length: int
    file_size: int  # as Spark has listed the file
    modified: int  # the same, in milliseconds since 1970


def file_columns(df: DataFrame) -> dict[str, str]:
    """The column in the files for each column of a plain scan of Parquet files.

    Raises ``NotDirectError`` if the DataFrame is anything else.
    """
    if is_connect(df.sparkSession):
        raise NotDirectError("a client of Spark Connect does not see Spark's plan")
    _check_settings(df.sparkSession)
    plan = df._jdf.queryExecution().optimizedPlan()
    renamed: dict[Any, tuple[Any, str]] | None = None  # by id of a column of the DataFrame: that below, and its name
    while _name(plan) == _PROJECT:
        renamed = _through(plan, renamed)
        plan = plan.child()
    relation = _relation(plan)
    stored = {a.exprId().id(): a.name() for a in _items(plan.output())}
    partitioned = {f.name() for f in relation.partitionSchema().fields()}
    by_name: dict[str, str] = {}
    for wanted, name in (renamed or {i: (i, n) for i, n in stored.items()}).values():
        if wanted not in stored:
            raise NotDirectError(f"column '{name}' tells of files (_metadata), and is not in them")
        if stored[wanted] not in partitioned:
            by_name[name] = stored[wanted]
    return by_name


def _check_settings(spark: SparkSession) -> None:
    for name, expected in _SETTINGS.items():
        value = spark.conf.get(name, expected) or expected
        if value.lower() != expected:
            raise NotDirectError(f"{name}={value}")


def _through(project: Any, above: dict[Any, tuple[Any, str]] | None) -> dict[Any, tuple[Any, str]]:
    """Columns of the DataFrame by the columns below a projection, which may do no more than select and rename."""
    below: dict[Any, Any] = {}
    names: dict[Any, str] = {}
    for expression in _items(project.projectList()):
        source = expression.child() if _name(expression) == _ALIAS else expression
        if _name(source) != _ATTRIBUTE:
            raise NotDirectError(f"column '{expression.name()}' is computed: {source.sql()}")
        below[expression.exprId().id()] = source.exprId().id()
        names[expression.exprId().id()] = expression.name()
    if above is None:
        return {i: (below[i], names[i]) for i in below}
    return {i: (below[wanted], name) for i, (wanted, name) in above.items()}


def _relation(plan: Any) -> Any:
    """The files of a leaf of a plan."""
    kind = _name(plan).rpartition(".")[2]
    if _name(plan) != _RELATION:
        raise NotDirectError(f"the DataFrame {_KINDS.get(kind, 'is more than a selection of columns')} ({kind})")
    relation = plan.relation()
    if _name(relation) != _FILES:
        raise NotDirectError("the DataFrame is no scan of files")
    if _name(relation.fileFormat()) != _PARQUET:
        raise NotDirectError(f"the files are not plain Parquet ({_name(relation.fileFormat()).rpartition('.')[2]})")
    if relation.bucketSpec().isDefined():
        raise NotDirectError("the table is bucketed")
    options = {pair._1().lower(): pair._2() for pair in _items(relation.options().toSeq())}
    for name in _TOLERANT:
        if options.get(name.lower(), "false").lower() != "false":
            raise NotDirectError(f"the files are read with {name}={options[name.lower()]}")
    return relation


def splits(rows: DataFrame) -> list[FileSplit]:
    """How Spark splits the files of a plain scan, in the order of partitions, and of files within one; no job runs.

    Raises ``NotDirectError`` if Spark reads them otherwise.
    """
    execution = rows._jdf.queryExecution()
    leaves = [_name(leaf) for leaf in _items(execution.executedPlan().collectLeaves())]
    if leaves != [_SCAN]:
        raise NotDirectError(f"Spark reads the files with {' and '.join(n.rpartition('.')[2] for n in leaves)}")
    found = []
    for partition in execution.toRdd().partitions():
        if _name(partition) != _PARTITION:
            raise NotDirectError(f"Spark reads the files by {_name(partition).rpartition('.')[2]}")
        found += [_split(partition.index(), file) for file in partition.files()]
    return found


def _split(partition: int, file: Any) -> FileSplit:
    uri = file.filePath().toPath().toUri()
    place = uri.getPath() if uri.getScheme() in (None, "file") else pyarrow_uri(uri.toString())
    return FileSplit(partition, place, file.start(), file.length(), file.fileSize(), file.modificationTime())


def _name(thing: Any) -> str:
    name: str = thing.getClass().getName()
    return name


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(i) for i in range(sequence.size()))
