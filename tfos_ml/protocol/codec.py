"""Frozen dataclasses as JSON, and back: the one encoder and decoder of what crosses a process boundary as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tfos_ml import errors

T = TypeVar("T")


class MessageError(ValueError):
    """Content of an unknown kind, or with other fields than expected."""


def encode(value: Any) -> str:
    """JSON of a dataclass, or of plain values that hold some; classes of errors are encoded by their names."""
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, type):
        return value.__name__
    if is_dataclass(value):
        return vars(value)
    raise TypeError(f"{type(value).__name__} is no dataclass and no JSON value: {value!r}")


def decode(cls: type[T], content: Any) -> T:
    """Build a dataclass from a dict of its fields, as JSON has them; those with a default may be missing.

    Fields are scalars, classes of :mod:`tfos_ml.errors`, other dataclasses, and lists, tuples and dicts of these;
    ``Any`` is any JSON value. Raises ``MessageError`` if `content` is no dict, a field is missing or unknown, or a
    value does not have its field's type.
    """
    if not isinstance(content, dict):
        raise MessageError(f"{cls.__name__}: expected a JSON object, got {type(content).__name__}")
    types, required = _fields(cls)  # type: ignore[arg-type]  # mypy takes no type[T] for hashable
    if content.keys() - types.keys() or required - content.keys():
        unknown, missing = sorted(content.keys() - types.keys()), sorted(required - content.keys())
        raise MessageError(f"{cls.__name__}: unknown fields {unknown}, missing fields {missing}")
    return cls(**{name: _value(f"{cls.__name__}.{name}", types[name], value) for name, value in content.items()})


@lru_cache
def _fields(cls: type[Any]) -> tuple[dict[str, Any], frozenset[str]]:
    required = (f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)
    return get_type_hints(cls), frozenset(required)


def _value(name: str, hint: Any, value: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if isinstance(hint, UnionType):  # of one type and None
        return None if value is None else _value(name, args[0], value)
    if isinstance(hint, type) and is_dataclass(hint):
        return decode(hint, value)
    if origin is type:
        found = getattr(errors, str(value), None)
        if isinstance(found, type) and issubclass(found, errors.TfosMlError):
            return found
    if origin in (list, tuple) and isinstance(value, list):
        return origin(_value(name, args[0], item) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _value(f"{name}[{key!r}]", args[1], item) for key, item in value.items()}
    if origin is None and (type(value) is hint or (hint is float and type(value) is int)):
        return value
    raise MessageError(f"{name}: expected {hint}, got {repr(value)[:100]}")


def encode_tagged(message: Any) -> str:
    """JSON of a dataclass with the name of its class as ``type``."""
    return encode({"type": type(message).__name__, **vars(message)})


def decode_tagged(kinds: Mapping[str, type[T]], text: bytes | str) -> T:
    """The dataclass that :func:`encode_tagged` has encoded, of one of these kinds; raises as :func:`decode`."""
    try:
        content = json.loads(text)
        cls = kinds[content.pop("type")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MessageError(f"expected a message of type {sorted(kinds)}, got {text[:200]!r}") from error
    return decode(cls, content)


def parse(text: bytes | str) -> Any:
    """The value of a JSON text; raises ``MessageError`` if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the message is not JSON ({type(error).__name__})") from None
