"""Encodes values without an Arrow type as values with one.

Messages only name one of these codecs; nothing is unpickled.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ValueCodec:
    """How values of a type are encoded."""

    type: type
    encode: Callable[[Any], Any]  # from a value to one with an Arrow type
    decode: Callable[[Any], Any]  # and back
    cast: str  # expression that converts a value ``x`` for a tensor, for errors


def _from_duration(value: datetime.timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


def _to_duration(text: str) -> datetime.timedelta:
    days, seconds, microseconds = map(int, text.split())
    return datetime.timedelta(days, seconds, microseconds)


def _from_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _to_text(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


CODECS = {
    "int": ValueCodec(int, hex, lambda text: int(text, 16), "float(x)"),  # of any size
    "decimal": ValueCodec(Decimal, str, Decimal, "float(x)"),
    "fraction": ValueCodec(Fraction, str, Fraction, "float(x)"),
    "complex": ValueCodec(complex, lambda z: [z.real, z.imag], lambda parts: complex(*parts), "(x.real, x.imag)"),
    "uuid": ValueCodec(uuid.UUID, lambda value: value.bytes, lambda content: uuid.UUID(bytes=content), "str(x)"),
    "time": ValueCodec(datetime.time, str, datetime.time.fromisoformat, "str(x)"),
    "duration": ValueCodec(datetime.timedelta, _from_duration, _to_duration, "x.total_seconds()"),
    "text": ValueCodec(str, _from_text, _to_text, "x.encode('utf-8', 'replace').decode()"),  # with lone surrogates
    "range": ValueCodec(range, lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts), "list(x)"),
    "set": ValueCodec(set, list, set, "sorted(x)"),
    "frozenset": ValueCodec(frozenset, list, frozenset, "sorted(x)"),
    "dict": ValueCodec(dict, lambda d: list(d.items()), dict, "list(x.items())"),  # of any keys
}
_NAMES = {codec.type: name for name, codec in CODECS.items()}
MIXED_CAST = "one type for all rows, as float(x) or str(x)"

_CASTS = [
    ("toArray", "x.toArray()"),
    ("toarray", "x.toarray()"),
    ("to_pydatetime", "x.to_pydatetime()"),
    ("to_numpy", "x.to_numpy()"),
    ("filled", "x.filled()"),
    ("numpy", "x.numpy()"),
    ("__dataclass_fields__", "dataclasses.asdict(x)"),
    ("_member_map_", "x.value"),
    ("__array__", "numpy.asarray(x)"),
]


def codec_for(value_class: type) -> str | None:
    """Name of the codec for a type."""
    return _NAMES.get(value_class)


def cast_for(value_class: type) -> str | None:
    """An expression that converts a value ``x`` to a supported type; None if unknown."""
    if issubclass(value_class, np.generic):
        return "float(x)"
    known = next((cast for attribute, cast in _CASTS if hasattr(value_class, attribute)), None)
    return known or ("vars(x)" if getattr(value_class, "__dictoffset__", 0) else None)
