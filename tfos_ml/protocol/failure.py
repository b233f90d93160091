"""How a failure travels from a node to the driver.

A node reports it to the driver's control server, and its Spark task then ends without an error
(``agent/supervisor.py``). If the node cannot reach the driver, it raises :class:`NodeFailure` in the task, which ends
the barrier stage. Spark transmits only the text of the exception, so the text also contains the failure in encoded
form, which the driver turns back into a typed error.
"""

from __future__ import annotations

import base64
import re
import zlib

from msgspec import structs

from tfos_ml import errors
from tfos_ml.protocol.codec import Struct, decode, encode

MAX_CHARACTERS = 200_000  # of each text; a message to the driver has at most 8 MiB
_ENCODED = re.compile(r"<tfos_ml:([A-Za-z0-9+/=]+)>")
_MAX_BYTES = 16 << 20
_NODE_ERROR_FIELDS = ("role", "index", "host", "traceback", "log_tail", "exit_code", "signal")


class Failure(Struct, frozen=True):
    """What happened to a node.

    `error` is the class to raise on the driver. `collateral` means that it looks like the consequence of another
    node's failure. For the other fields see ``errors.NodeError``.
    """

    error: type[errors.TfosMlError]
    message: str
    role: str = ""
    index: int = -1
    host: str = ""
    traceback: str = ""
    log_tail: str = ""
    exit_code: int | None = None
    signal: str | None = None
    collateral: bool = False

    def cut(self) -> Failure:
        """The same, without the middle of texts that are too long for a message to the driver."""
        texts = {name: _cut(getattr(self, name)) for name in ("message", "traceback", "log_tail")}
        return structs.replace(self, **texts)

    def to_error(self) -> errors.TfosMlError:
        """The error to raise on the driver."""
        if issubclass(self.error, errors.NodeError):
            fields = {name: getattr(self, name) for name in _NODE_ERROR_FIELDS}
            return self.error(self.message, **fields, is_collateral=self.collateral)
        where = f"{self.role}:{self.index} on {self.host}: " if self.role else ""
        return self.error(where + self.message)

    def encode(self) -> str:
        """Text without spaces that :func:`find_failure` can find among other text."""
        return f"<tfos_ml:{base64.b64encode(zlib.compress(encode(self))).decode()}>"


def _cut(text: str) -> str:
    left_out = len(text) - MAX_CHARACTERS
    if left_out <= 0:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n({left_out:,} characters left out)\n{text[-half:]}"


class NodeFailure(Exception):  # noqa: N818  (it reports a Failure)
    """Raised in the Spark task of a failed node; never seen by users."""

    def __init__(self, failure: Failure):
        self.failure = failure
        super().__init__(f"{failure.to_error()}\n{failure.encode()}")


def find_failure(text: str) -> Failure | None:
    """The failure that the text of a Spark error contains, if any."""
    for encoded in _ENCODED.findall(text):
        try:
            return decode(Failure, zlib.decompressobj().decompress(base64.b64decode(encoded), _MAX_BYTES))
        except (ValueError, zlib.error):  # it only looks like one
            continue
    return None
