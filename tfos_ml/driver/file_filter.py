"""Filters of Spark's plan that nodes apply to files themselves: those that mean the same to Arrow, for every row.

Spark also leaves out row groups by the statistics of Parquet, which know no NaN, and tell 0.0 from -0.0. So it may
depend on the other rows of a row group whether a row with NaN is kept; such comparisons are refused. CSV and JSON have
no statistics, and what nodes read of them has no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import Any

from tfos_ml.data.file_plan import TEXTS
from tfos_ml.data.row_condition import Among, Call, ColumnOf, Condition, Literal, Value
from tfos_ml.driver.file_scan import FileScan, NotDirectError, class_name, items

ARROW_TYPES = {
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "bool",
    "string": "string",
}
"""Arrow's names of the types of Spark whose values are compared alike."""
_COMPARISONS = {
    "EqualTo": "equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
}
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
_CONNECTIVES = {"And": "and_kleene", "Or": "or_kleene", "Not": "invert"}
_NULL_TESTS = {"IsNull": "is_null", "IsNotNull": "is_valid"}


def row_condition(scan: FileScan) -> Condition | None:
    """The condition that the rows of a scan fulfil; None if all do.

    Raises ``NotDirectError`` if a part of it might not be the same to Spark and to Arrow.
    """
    translator = _Translator(scan)
    parts = [translator.translate(condition) for condition in scan.conditions]
    return reduce(lambda one, other: Call("and_kleene", (one, other)), parts) if parts else None


class _Translator:
    """From expressions of Catalyst to conditions on Arrow columns."""

    def __init__(self, scan: FileScan):
        self._attributes = scan.attributes
        self._partitions = scan.partitions
        self._is_text = scan.format in TEXTS
        self._without_nan = set(self._columns_without_nan(scan.conditions))

    def _columns_without_nan(self, conditions: Iterable[Any]) -> Iterable[str]:
        """Columns that must not be NaN, whatever else is true of a row."""
        for condition in conditions:
            if _kind(condition) == "Not" and _kind(condition.child()) == "IsNaN":
                yield self._column(condition.child().child())[0].name

    def translate(self, expression: Any, negated: bool = False) -> Condition:
        kind = _kind(expression)
        if kind in _CONNECTIVES:
            inner = negated or kind == "Not"
            parts = tuple(self.translate(child, inner) for child in items(expression.children()))
            return Call(_CONNECTIVES[kind], parts)
        if kind in _NULL_TESTS:
            return Call(_NULL_TESTS[kind], (self._column(expression.child())[0],))
        if kind == "IsNaN":
            column, _ = self._column(expression.child())
            return Call("coalesce", (Call("is_nan", (column,)), Literal(False, "bool")))
        if kind in _COMPARISONS or kind == "EqualNullSafe":
            return self._comparison(expression, negated)
        if kind in ("In", "InSet"):
            return self._among(expression, negated)
        column, column_kind = self._column(expression)
        if column_kind != "boolean":
            raise _unknown(expression)
        return column

    def _comparison(self, expression: Any, negated: bool) -> Condition:
        kind = _kind(expression)
        function = _COMPARISONS.get(kind, "equal")
        left, right = expression.left(), expression.right()
        if _kind(left) == "Literal":
            left, right, function = right, left, _MIRRORED.get(function, function)
        column, column_kind = self._column(left)
        if _kind(right) != "Literal" or right.value() is None:
            raise _unknown(expression)
        value = _value(right.value(), column_kind, expression)
        self._check_float(column, function, [value], negated, expression)
        call = Call(function, (column, Literal(value, ARROW_TYPES[column_kind])))
        return call if kind in _COMPARISONS else Call("coalesce", (call, Literal(False, "bool")))

    def _among(self, expression: Any, negated: bool) -> Condition:
        if _kind(expression) == "In":
            literals = list(items(expression.list()))
            if {_kind(literal) for literal in literals} != {"Literal"}:
                raise _unknown(expression)
            given, tested = [literal.value() for literal in literals], expression.value()
        else:
            given, tested = list(items(expression.hset().toSeq())), expression.child()
        column, kind = self._column(tested)  # of the same type as the values, or Spark would convert it
        if None in given:
            raise _unknown(expression)
        values = [_value(value, kind, expression) for value in given]
        self._check_float(column, "is_in", values, negated, expression)
        return Among(column, tuple(values), ARROW_TYPES[kind])

    def _check_float(
        self, column: ColumnOf, function: str, values: Iterable[Value], negated: bool, expression: Any
    ) -> None:
        """Raise unless Spark keeps the same rows, whatever the statistics of row groups say."""
        floats = [value for value in values if isinstance(value, float)]
        is_exact = self._is_text and column.name not in self._partitions
        zeros_matter = function == "is_in" or (function != "less" and not is_exact)
        if any(map(math.isnan, floats)) or (0.0 in floats and zeros_matter):
            raise _unknown(expression, "what Spark keeps of NaN, 0.0 and -0.0 depends on statistics of Parquet")
        keeps_nan = negated or function in ("greater", "greater_equal")
        if floats and keeps_nan and not is_exact and column.name not in self._without_nan:
            hint = f"add 'NOT isnan({column.name})'"
            raise _unknown(expression, f"what Spark keeps of NaN depends on statistics of Parquet; {hint}")

    def _column(self, expression: Any) -> tuple[ColumnOf, str]:
        """A column of the files, and Spark's type."""
        if _kind(expression) != "AttributeReference" or expression.exprId().id() not in self._attributes:
            raise _unknown(expression)
        name, kind = self._attributes[expression.exprId().id()]
        return ColumnOf(name), kind


def _value(value: Any, kind: str, expression: Any) -> Value:
    """A value of Catalyst's as Python has it."""
    if kind not in ARROW_TYPES:
        raise _unknown(expression)
    converted: Value = value.toString() if kind == "string" else value
    return converted


def _unknown(expression: Any, why: str = "nodes do not know this condition") -> NotDirectError:
    return NotDirectError(f"the DataFrame is filtered by {expression.sql()}: {why}")


def _kind(expression: Any) -> str:
    """The name of an expression of Spark's own; of others with their package."""
    name = class_name(expression)
    package, _, short = name.rpartition(".")
    return short if package == "org.apache.spark.sql.catalyst.expressions" else name
