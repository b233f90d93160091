"""Checks of texts and of their values that CSV and JSON share: what several parsers read alike passes."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_ml.agent.text_blocks import LONGEST_LINE, UncertainLinesError

_CONTROLS = bytes(set(range(0x20)) - set(b"\t\r\n"))
_BELOW_HALVES = (1 << 28) - 1
"""Bits of a double that are 0 if it is a float, or halfway between two."""
_LONE_RETURN = re.compile(rb"\r(?!\n)")


def check_bytes(content: bytes, refused: bytes = b"") -> None:
    """Raise unless lines end with LF or CRLF, and hold neither control characters nor some others."""
    if not content.endswith(b"\n"):
        raise UncertainLinesError(f"a line of more than {LONGEST_LINE >> 20} MiB", 0)
    if content.translate(None, _without(_CONTROLS + refused)):
        found = re.search(b"[" + re.escape(_CONTROLS + refused) + b"]", content)
        assert found is not None
        raise UncertainLinesError(f"the character {found[0].decode()!r}", found.start())
    if b"\r" in content and content.count(b"\r") != content.count(b"\r\n"):
        found = _LONE_RETURN.search(content)
        assert found is not None
        raise UncertainLinesError("a carriage return within a line", found.start())


def _without(refused: bytes) -> bytes:
    return bytes(set(range(256)) - set(refused))


def check_finite(column: pa.ChunkedArray) -> None:
    """Raise if a column of floats, or of lists of them, has a value that is not finite."""
    values = flat(column)
    if pa.types.is_floating(values.type) and pc.all(pc.is_finite(values)).as_py() is False:
        raise UncertainLinesError("a float that is not finite, or too large")


def flat(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """All values of a column without their lists."""
    while pa.types.is_list(column.type):
        column = pc.list_flatten(column)
    return column


def narrowed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Doubles as floats, or lists of them.

    Raises if a double is halfway between two floats: the number of the text may then have to be rounded the other way.
    """
    wide = flat(column).drop_null().to_numpy()
    if (np.abs(wide) > np.finfo(np.float32).max).any():
        raise UncertainLinesError("a number too large for a float")
    wide = wide[wide.view(np.int64) & _BELOW_HALVES == 0]
    near = wide.astype(np.float32)
    with np.errstate(over="ignore"):
        other = np.nextafter(near, np.where(wide > near, np.float32(np.inf), np.float32(-np.inf)))
    if np.any((wide != near) & ((near.astype(np.float64) + other) / 2 == wide)):
        raise UncertainLinesError("a number halfway between two floats")
    return column.cast(kind, safe=False)
