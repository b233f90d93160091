"""The plan by which nodes read files themselves: Spark's splits, and what is in each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tfos_ml.data.file_plan import BINARY_FILE, TEXTS, TFRECORD, FilePlan
from tfos_ml.data.parquet_types import spark_arrow_type
from tfos_ml.data.row_condition import Condition, columns_of
from tfos_ml.data.validation_draw import ValidationDraw
from tfos_ml.driver.binary_listing import LONGEST, LONGEST_SETTING, binary_listing, check_columns
from tfos_ml.driver.file_filter import ARROW_TYPES, row_condition
from tfos_ml.driver.file_listing import Listing
from tfos_ml.driver.file_scan import FileScan, NotDirectError, file_scan, splits
from tfos_ml.driver.parquet_listing import Kind, parquet_listing
from tfos_ml.driver.text_listing import text_listing
from tfos_ml.driver.tfrecord_listing import tfrecord_listing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def make_plan(
    df: DataFrame,
    columns: Sequence[str],
    validation: str | ValidationDraw | None,
    numbered: Callable[[], DataFrame],
) -> FilePlan:
    """Plan how nodes read some columns of a DataFrame from its files.

    `validation` says which rows are for validation: a boolean column, or a draw. `numbered` makes the DataFrame that
    Spark would feed. Raises ``NotDirectError`` if rows might not be the same, or not in the same order, as Spark has
    them.
    """
    scan = file_scan(df)
    wanted = [*columns, *([validation] if isinstance(validation, str) else [])]
    kinds = {scan.columns[name]: _kind(df, name, scan) for name in wanted if name in scan.columns}
    fields = [name for name in wanted if name not in scan.columns]
    if fields:
        raise NotDirectError(f"'{fields[0]}' is a field of a struct")
    condition = row_condition(scan)
    kinds |= _tested_kinds(scan, condition, kinds)
    listing = _listing(df, scan, kinds, numbered)
    return FilePlan(
        listing.files,
        listing.pieces,
        tuple(scan.columns[name] for name in columns),
        scan.columns[validation] if isinstance(validation, str) else validation,
        condition,
        listing.constants,
        format=scan.format,
        decoding=listing.decoding,
    )


def _listing(df: DataFrame, scan: FileScan, kinds: Mapping[str, Kind], numbered: Callable[[], DataFrame]) -> Listing:
    from pyspark.sql.types import StructType

    if scan.format == TFRECORD:
        return tfrecord_listing(scan.options, StructType.fromJson(json.loads(scan.schema)), numbered)
    names = list(scan.partitions)
    wanted = [name for name in kinds if name in scan.partitions]
    found = splits(numbered(), [(names.index(name), scan.partitions[name]) for name in wanted])
    told = [(name, ARROW_TYPES[scan.partitions[name]]) for name in wanted]
    if scan.format == BINARY_FILE:
        check_columns(set(kinds), set(wanted))
        return binary_listing(found, told, int(df.sparkSession.conf.get(LONGEST_SETTING, None) or LONGEST))
    if scan.format in TEXTS:
        return text_listing(df.sparkSession, scan, found, kinds, told)
    return parquet_listing(found, kinds, told)


def _kind(df: DataFrame, name: str, scan: FileScan) -> Kind:
    """The type of a column of the DataFrame to Spark and to Arrow."""
    stored = scan.columns[name]
    if "." in stored:
        raise NotDirectError(f"the name of column '{stored}' has a dot in it")
    (found,) = [field.dataType for field in df.schema.fields if field.name == name]
    kind = spark_arrow_type(found)
    if kind is None or (stored in scan.partitions and scan.partitions[stored] not in ARROW_TYPES):
        raise NotDirectError(f"Spark converts column '{name}' of type {found.simpleString()} as it reads it")
    return Kind(found.simpleString(), kind)


def _tested_kinds(scan: FileScan, condition: Condition | None, known: Mapping[str, Kind]) -> dict[str, Kind]:
    """The types of columns in a filter that are not `known`; of those tested for null alone any type will do."""
    types = dict(scan.attributes.values())
    found = {}
    for name in columns_of(condition) - set(known) if condition is not None else ():
        alias = ARROW_TYPES.get(types[name])
        if "." in name or (alias is None and name in scan.partitions):
            raise NotDirectError(f"the DataFrame is filtered by column '{name}' of type {types[name]}")
        found[name] = Kind(types[name], pa.type_for_alias(alias) if alias else None)
    return found
