"""The rows of a search's trials: one DataFrame for each fold, in which a column marks the validation rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tfos_ml.data import schema
from tfos_ml.errors import ColumnTypeError, ParamError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MARK = "tfos_ml_validation"
_FOLD = "tfos_ml_fold"
_INTEGERS = {"int8", "int16", "int32", "int64"}


@dataclass(frozen=True)
class Folds:
    """How rows are divided, as by Spark ML's ``TrainValidationSplit`` and ``CrossValidator``.

    Raises ``ParamError`` if the Params do not go together.
    """

    train_ratio: float | None = None
    num_folds: int | None = None
    fold_col: str | None = None

    def __post_init__(self) -> None:
        if self.train_ratio is not None and (self.num_folds, self.fold_col) != (None, None):
            raise ParamError(
                f"trainRatio={self.train_ratio} is one split. Unset it, or numFolds={self.num_folds!r} and "
                f"foldCol={self.fold_col!r}."
            )

    @property
    def is_set(self) -> bool:
        """Whether there are validation rows."""
        return (self.train_ratio, self.num_folds, self.fold_col) != (None, None, None)

    def marked(self, dataset: DataFrame, seed: int) -> DataFrame:
        """The rows with the number of each row's fold; drawn by `seed`, unless a column has it."""
        return dataset.withColumn(_FOLD, self._number(dataset, seed))

    def _number(self, dataset: DataFrame, seed: int) -> Column:
        if self.fold_col is not None:
            return self._given(dataset, self.fold_col)
        if self.num_folds is not None:
            return F.floor(F.rand(seed) * self.num_folds).cast("int")
        return F.when(F.rand(seed) < F.lit(self.train_ratio), 1).otherwise(0)

    def _given(self, dataset: DataFrame, name: str) -> Column:
        dtype = schema.column_spec(dataset.schema, name, name, "foldCol").dtype
        column = schema.column_of(dataset, name, "foldCol")
        if self.num_folds is None:
            if dtype != "bool":
                raise ColumnTypeError(
                    f"The column '{name}' of foldCol has the type {dtype}. Set numFolds to the number of its folds, or "
                    "cast it to boolean, true for validation rows."
                )
            return F.when(column, 0).otherwise(1)
        if dtype not in _INTEGERS:
            raise ColumnTypeError(
                f"The column '{name}' of foldCol has the type {dtype}. With numFolds={self.num_folds} it must have "
                f"integers from 0 to {self.num_folds - 1}: cast it, or unset numFolds."
            )
        wrong = F.raise_error(
            F.concat(F.lit(f"foldCol='{name}' must be from 0 to {self.num_folds - 1}, but is "), column.cast("string"))
        )
        return F.when(column.between(0, self.num_folds - 1), column).otherwise(wrong.cast("int"))

    def split(self, rows: DataFrame) -> list[DataFrame]:
        """The folds of the result of :meth:`marked`, each with the column ``MARK``."""
        return [rows.withColumn(MARK, F.col(_FOLD) == number).drop(_FOLD) for number in range(self.num_folds or 1)]


def parts_of(fold: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Training rows and validation rows of a fold."""
    return fold.where(~F.col(MARK)).drop(MARK), fold.where(F.col(MARK)).drop(MARK)
