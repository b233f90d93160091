"""Encodes and decodes all messages between processes: as MessagePack, or as JSON where text is required."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar, get_args

import msgspec

from tfos_ml import errors

T = TypeVar("T")


class Struct(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A message: fields with types, encoded with the name of its class."""


class MessageError(ValueError):
    """The content is of an unknown type, or has other fields than expected."""


def encode(value: Any) -> bytes:
    """MessagePack of a message, a dataclass or plain values; ``TypeError`` for anything else.

    Error classes are encoded by name. Characters that UTF-8 cannot encode become Python escapes.
    """
    try:
        return msgspec.msgpack.encode(value, enc_hook=_plain)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(_readable(msgspec.to_builtins(value, enc_hook=_plain, builtin_types=(bytes,))))


def decode(message_type: type[T], content: bytes) -> T:
    """Decode the output of :func:`encode`.

    `message_type` is the class of a message or a dataclass, a union of messages, or a builtin container. Raises
    ``MessageError`` if the content is of another type, or a field is missing, unknown or not of its type.
    """
    try:
        value: T = _decoder(message_type).decode(content)  # type: ignore[arg-type]  # mypy takes no type[T] for hashable
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        expected = " or ".join(arg.__name__ for arg in get_args(message_type) or [message_type])
        raise MessageError(f"expected {expected}: {error}, got {bytes(content[:200])!r}") from None
    return value


def encode_text(value: Any) -> str:
    """JSON of a message whose numbers are finite, for channels that carry text."""
    return msgspec.json.encode(value, enc_hook=_plain).decode()


def decode_text(message_type: type[T], text: str) -> T:
    """Decode the output of :func:`encode_text`; raises as :func:`decode`."""
    try:
        return msgspec.json.decode(text, type=message_type, dec_hook=_known)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise MessageError(f"expected {message_type.__name__}: {error}, got {text[:200]!r}") from None


@lru_cache
def _decoder(message_type: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(message_type, dec_hook=_known)


def _plain(value: Any) -> Any:
    if isinstance(value, type):
        return value.__name__
    for base in (str, int, float):  # of which NumPy's numbers, say, are subclasses
        if isinstance(value, base):
            return base(value)
    raise TypeError(f"{type(value).__name__} is no message and no plain value: {value!r}")


def _known(expected_type: Any, value: Any) -> Any:
    """The class of an error by its name."""
    error_class = getattr(errors, str(value), None)
    if isinstance(error_class, type) and issubclass(error_class, errors.TfosMlError):
        return error_class
    raise ValueError(f"expected {expected_type}, got {value!r}")


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list) else value
