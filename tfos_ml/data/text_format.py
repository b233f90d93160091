"""How the lines of CSV and JSON files are read; what nodes are told of it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class TextFormat:
    """Of all files of a plan."""

    types: dict[str, pa.DataType]  # of the columns that are read
    names: tuple[str, ...] = ()  # of CSV: of all fields of a line, in their order
    delimiter: str = ","  # of CSV: one ASCII character
    has_header: bool = False  # of CSV: the first line of a file that is not empty is no row
