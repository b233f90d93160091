"""The rows of a fit: which columns of a DataFrame are fed, which rows are for validation, and which node gets which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tfos_ml import errors
from tfos_ml.agent.feeder import VALIDATION_COLUMN
from tfos_ml.common.spark_api import arrow_table, repartition_by_id
from tfos_ml.data import schema
from tfos_ml.data.arrow import to_storage
from tfos_ml.data.row_checks import RowChecks
from tfos_ml.data.row_order import rank_of_row
from tfos_ml.data.snapshot_layout import SnapshotRows, StoredColumn
from tfos_ml.data.validation_draw import ValidationDraw
from tfos_ml.driver.job_errors import adapt_rows_error, run_job
from tfos_ml.driver.snapshot import SnapshotDirectory, WrittenSnapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from tfos_ml.protocol.cluster_template import ClusterTemplate
    from tfos_ml.stages.params import TrainingParams


@dataclass(frozen=True)
class InputRows:
    """The rows of a DataFrame for a fit."""

    df: DataFrame = field(repr=False)
    columns: schema.FeedSchema  # to feed
    validation: str | ValidationDraw | None  # a boolean column, or a draw, that selects validation rows

    def validates(self) -> Column | None:
        """An expression that selects the validation rows; None if there are none."""
        if isinstance(self.validation, ValidationDraw):
            return self.validation.column()
        if not self.validation:
            return None
        return F.coalesce(schema.column_of(self.df, self.validation, "validation indicator"), F.lit(False))

    def numbered(self) -> DataFrame:
        """The rows to feed: columns ``c0``, ``c1``..., the row id, and whether it is for validation."""
        return _numbered(self.df, self.columns.columns, self.validates())

    def snapshot(self, directory: str, nodes: int) -> tuple[WrittenSnapshot, SnapshotRows]:
        """The snapshot in a directory, written now if there is none; raises as ``SnapshotDirectory.take``."""
        specs = [
            replace(spec, dtype="float64", constraint=schema.ColumnConstraint()) if spec.is_vector else spec
            for spec in self.columns.columns
        ]
        if isinstance(self.validation, str):
            specs.append(schema.column_spec(self.df.schema, self.validation, self.validation, "validation indicator"))
        columns = [StoredColumn.of(spec) for spec in specs]
        unique = [specs[columns.index(column)] for column in dict.fromkeys(columns)]
        written = SnapshotDirectory(directory, self.df.sparkSession).take(
            self.df, lambda: _numbered(self.df, unique, None), list(dict.fromkeys(columns)), nodes
        )
        positions = [written.snapshot.columns.index(column) for column in columns]
        validation = positions.pop() if isinstance(self.validation, str) else self.validation
        return written, SnapshotRows(written.snapshot, tuple(positions), validation)

    def by_node(self, template: ClusterTemplate, first: int, is_fed: bool = True) -> DataFrame:
        """The plan whose partition *i* has the rows of node *i* + `first`, each with its row id.

        If nodes read their rows elsewhere, or take none, the plan has one meaningless row per node.
        """
        if not (is_fed and self.columns.columns):
            return self.df.sparkSession.range(0, template.size - first, 1, template.size - first)
        rows = self.numbered()
        row = F.col(schema.ROW_COLUMN)
        rank = rank_of_row(row, template.feed_ranks)
        if VALIDATION_COLUMN in rows.columns:
            rank = F.when(F.col(VALIDATION_COLUMN), rank_of_row(row, template.validation_ranks)).otherwise(rank)
        return repartition_by_id(rows, template.size - first, rank - F.lit(first))

    def to_adapt_on(self, limit: int | None) -> pa.Table:
        """The feature columns of training rows, at most `limit` rows, for preprocessing layers; runs a Spark job.

        Raises ``EmptyDataError`` if there are no rows, and errors of the job and of values that nodes would refuse.
        """
        rows = self.numbered()
        if VALIDATION_COLUMN in rows.columns:
            rows = rows.where(~F.col(VALIDATION_COLUMN))
        rows = self._without_skipped(rows).select([f"c{i}" for i in self.columns.of("feature")])
        if limit:
            rows = rows.limit(limit)
        table = run_job(partial(arrow_table, rows), self.df.sparkSession, adapt_rows_error)
        if not table.num_rows:
            raise errors.EmptyDataError("There are no training rows to adapt layers on. Check filters and joins.")
        features = tuple(self.columns.columns[i] for i in self.columns.of("feature"))
        keeps = self.columns.handle_invalid == "keep"
        checks = RowChecks(schema.FeedSchema(features, handle_invalid="keep" if keeps else "error"))
        columns = zip(table.combine_chunks().columns, features, strict=True)
        checks.rows_to_keep([to_storage(array.chunk(0), spec) for array, spec in columns])
        return table

    def _without_skipped(self, numbered: DataFrame) -> DataFrame:
        """Leave out the rows that the nodes will skip."""
        if self.columns.handle_invalid != "skip":
            return numbered
        kinds = [schema.PLAIN if spec.is_vector and not spec.is_wide else spec.kind for spec in self.columns.columns]
        specs = [replace(c, column=f"c{i}", kind=kinds[i]) for i, c in enumerate(self.columns.columns)]
        return numbered.where(schema.no_nulls(numbered, specs) & schema.all_finite(numbered, specs))


def _numbered(df: DataFrame, specs: Sequence[schema.ColumnSpec], validates: Column | None) -> DataFrame:
    expressions = [schema.spark_column(spec, df, spec.dtype).alias(f"c{i}") for i, spec in enumerate(specs)]
    expressions.append(F.monotonically_increasing_id().alias(schema.ROW_COLUMN))
    if validates is not None:
        expressions.append(validates.alias(VALIDATION_COLUMN))
    return df.select(*expressions)


def feed_schema(stage: TrainingParams, given: StructType) -> schema.FeedSchema:
    """The columns that the Params of a stage select, checked against the schema of the DataFrame."""
    inputs = stage._get("inputMapping") or {stage._get("featuresCol"): "features"}
    labels = stage._get("labelMapping")
    if labels is None:
        label = stage._get("labelCol")
        labels = {label: "label"} if stage.isSet(stage.labelCol) or label in given.names else {}
    weights = stage._get("weightMapping")
    if weights is None:
        weights = {stage._get("weightCol"): "weight"} if stage._get("weightCol") else {}
    by_role = {"feature": inputs, "label": labels, "weight": weights}
    for role, columns in by_role.items():
        names = list(columns.values())
        if len(set(names)) < len(names):
            raise errors.ParamError(f"Each tensor takes one column, but {role}s are mapped to {names}")
    wanted = [(column, tensor, role) for role, columns in by_role.items() for column, tensor in columns.items()]
    specs = tuple(schema.column_spec(given, column, tensor, role) for column, tensor, role in wanted)
    indicator = stage._get("validationIndicatorCol")
    if indicator and schema.column_spec(given, indicator, indicator, "validation indicator").dtype != "bool":
        raise errors.ColumnTypeError(f"validationIndicatorCol '{indicator}' must be boolean. Cast it.")
    features, labels_named, weights_named = (
        stage._get(f"{role}Mapping") is not None for role in ("input", "label", "weight")
    )
    return schema.FeedSchema(specs, features, labels_named, weights_named, stage._get("handleInvalid"))


def files_to_read(df: DataFrame) -> list[str]:
    """The files of a DataFrame, for train functions that read them; raises ``EmptyDataError`` if it has none."""
    files = sorted(df.inputFiles())
    if not files:
        raise errors.EmptyDataError(
            "inputMode=TENSORFLOW lets the nodes read the DataFrame's files, but it has none. Read it from files, "
            "or use InputMode.SPARK."
        )
    return files
