"""The columns that a transform appends to a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from tfos_ml.inference import arrow_udf, udf
from tfos_ml.inference.prediction import PredictionSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField


@dataclass(frozen=True)
class AppendedColumns:
    """Maps the fields of the UDF's result to columns."""

    types: dict[str, pa.DataType]  # of the fields, in order
    names: dict[str, str]  # of the columns, by field
    prediction_spec: PredictionSpec | None  # meaning of the only output, if it is not just a tensor
    labels: tuple[str, ...] = ()  # names of the classes, if the metadata of the label column has them
    vectors: frozenset[str] = frozenset()  # fields that become vectors of Spark ML

    def schema_fields(self) -> list[StructField]:
        """The fields of the schema for the columns."""
        from pyspark.ml.linalg import VectorUDT
        from pyspark.sql.types import StructField

        return [
            StructField(
                column, VectorUDT() if field in self.vectors else self._type(field), True, self._metadata(field)
            )
            for field, column in self.names.items()
        ]

    def _type(self, field: str) -> DataType:
        from pyspark.sql.pandas.types import from_arrow_type

        return from_arrow_type(self.types[field])

    def append(self, df: DataFrame, function: Callable[..., Any], inputs: Sequence[Column]) -> DataFrame:
        """Append the columns. Several columns are computed as one struct, so that the model runs once."""
        result = arrow_udf.apply(df, function, self.result_type(), inputs)
        if len(self.types) == 1:
            (field,) = self.types
            return df.withColumn(self.names[field], self._column(field, result))
        taken = {column.lower() for column in df.columns}
        struct = next(name for i in count() if (name := f"__tfos_ml_outputs_{i}") not in taken)
        new = [self._column(field, F.col(struct)[name]) for field, name in self.names.items()]
        return df.withColumn(struct, result).select("*", *new).drop(struct)

    def result_type(self) -> DataType:
        """The type of the UDF: that of the only field, or a struct with the names of the columns."""
        from pyspark.sql.types import StructField, StructType

        if len(self.types) == 1:
            return self._type(next(iter(self.types)))
        return StructType([StructField(self.names[field], self._type(field)) for field in self.types])

    def _column(self, field: str, value: Column) -> Column:
        """The column of one field."""
        from pyspark.ml.functions import array_to_vector

        if field in self.vectors:
            value = F.when(value.isNotNull(), array_to_vector(value))
        metadata = self._metadata(field)
        return value.alias(self.names[field], metadata=metadata) if metadata else value.alias(self.names[field])

    @property
    def _is_classifier(self) -> bool:
        return self.prediction_spec is not None and self.prediction_spec.is_classifier

    def _metadata(self, field: str) -> dict[str, Any] | None:
        """Spark ML's metadata for the prediction, from which ``IndexToString`` reads the names of the classes."""
        if not self.labels or not self._is_classifier or field != udf.PREDICTION:
            return None
        return {"ml_attr": {"vals": list(self.labels), "type": "nominal", "name": self.names[field]}}
