"""Conditions on rows, of the three values of SQL, which nodes evaluate on Arrow columns of the files that they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Value: TypeAlias = bool | int | float | str


@dataclass(frozen=True)
class ColumnOf:
    """A column."""

    name: str


@dataclass(frozen=True)
class Literal:
    """A value of an Arrow type, by its name."""

    value: Value
    kind: str


@dataclass(frozen=True)
class Call:
    """A function of ``pyarrow.compute``."""

    function: str
    operands: tuple[Condition, ...]


@dataclass(frozen=True)
class Among:
    """Whether a column holds one of some values of an Arrow type; null for null, as in SQL."""

    column: ColumnOf
    values: tuple[Value, ...]
    kind: str


Condition: TypeAlias = ColumnOf | Literal | Call | Among


def columns_of(condition: Condition) -> set[str]:
    """Names of all columns in a condition."""
    match condition:
        case ColumnOf(name):
            return {name}
        case Call(_, operands):
            return set().union(*map(columns_of, operands))
        case Among(column):
            return {column.name}
    return set()


def evaluate(condition: Condition, columns: Mapping[str, pa.Array]) -> pa.Array | pa.Scalar:
    """True, false or null for each row; the value of a literal."""
    match condition:
        case ColumnOf(name):
            return columns[name]
        case Literal(value, kind):
            return pa.scalar(value, pa.type_for_alias(kind))
        case Call(function, operands):
            return pc.call_function(function, [evaluate(operand, columns) for operand in operands])
        case Among(column, values, kind):
            given = columns[column.name]
            found = pc.is_in(given, pa.array(values, pa.type_for_alias(kind)))
            return pc.if_else(pc.is_valid(given), found, pa.scalar(None, pa.bool_()))
