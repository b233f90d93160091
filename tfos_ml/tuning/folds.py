"""The rows of a search's trials: one DataFrame for each fold, in which a column marks the validation rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tfos_ml.data import schema
from tfos_ml.errors import ColumnTypeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARK = "tfos_ml_validation"
_FOLD = "tfos_ml_fold"


def marked(dataset: DataFrame, validation: int | float | str, seed: int) -> DataFrame:
    """The rows with what tells the folds apart; drawn by `seed`, unless `validation` is a column."""
    if isinstance(validation, str):
        if schema.column_spec(dataset.schema, validation, validation, "validation").dtype != "bool":
            raise ColumnTypeError(f"The column '{validation}' of validation must be boolean. Cast it.")
        number = F.when(schema.column_of(dataset, validation, "validation"), 0).otherwise(1)
    elif validation < 1:
        number = F.when(F.rand(seed) < validation, 0).otherwise(1)
    else:
        number = F.floor(F.rand(seed) * validation).cast("int")
    return dataset.withColumn(_FOLD, number)


def folds(rows: DataFrame, validation: int | float | str) -> list[DataFrame]:
    """The folds of the result of :func:`marked`, each with the column ``MARK``."""
    count = validation if isinstance(validation, int) else 1
    return [rows.withColumn(MARK, F.col(_FOLD) == number).drop(_FOLD) for number in range(count)]


def split(fold: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Training rows and validation rows of a fold."""
    return fold.where(~F.col(MARK)).drop(MARK), fold.where(F.col(MARK)).drop(MARK)
