"""Collects the training rows on which preprocessing layers are adapted."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tfos_ml import errors
from tfos_ml.agent.feeder import VALIDATION_COLUMN
from tfos_ml.common.spark_api import arrow_table
from tfos_ml.data import schema
from tfos_ml.data.arrow import plain
from tfos_ml.data.row_checks import RowChecks
from tfos_ml.driver.job_errors import adapt_rows_error, run_job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tfos_ml.stages.input import InputRows


def adapt_rows(rows: InputRows, limit: int | None) -> pa.Table:
    """The feature columns of training rows, at most `limit` rows; runs a Spark job.

    Raises ``EmptyDataError`` if there are no rows, and errors of the job and of values that nodes would refuse.
    """
    columns = rows.columns
    numbered = rows.numbered()
    if VALIDATION_COLUMN in numbered.columns:
        numbered = numbered.where(~F.col(VALIDATION_COLUMN))
    numbered = _without_skipped(numbered, columns).select([f"c{i}" for i in columns.of("feature")])
    if limit:
        numbered = numbered.limit(limit)
    table = run_job(partial(arrow_table, numbered), rows.df.sparkSession, adapt_rows_error)
    if not table.num_rows:
        raise errors.EmptyDataError("There are no training rows to adapt layers on. Check filters and joins.")
    features = tuple(columns.columns[i] for i in columns.of("feature"))
    checked = schema.FeedSchema(features, handle_invalid="keep" if columns.handle_invalid == "keep" else "error")
    RowChecks(checked).kept([plain(array.chunk(0)) for array in table.combine_chunks().columns])
    return table


def _without_skipped(numbered: DataFrame, columns: schema.FeedSchema) -> DataFrame:
    """Leave out the rows that the nodes will skip."""
    if columns.handle_invalid != "skip":
        return numbered
    kinds = [schema.PLAIN if spec.is_vector else spec.kind for spec in columns.columns]
    specs = [dataclasses.replace(c, column=f"c{i}", kind=kinds[i]) for i, c in enumerate(columns.columns)]
    return numbered.where(schema.no_nulls(numbered, specs) & schema.all_finite(numbered, specs))
