"""Removes passwords from texts that errors, logs, explanations of Params and MLflow show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

SECRET_NAME = re.compile("(?i)secret|passwo?r?d|passphrase|pwd|token$|credential|(access|account|api|private)[._-]?key")
HIDDEN = "***"
_SHORTEST_SECRET, _SHORTEST_VALUE = 4, 8  # shorter ones are found in any text

_SCHEME = r"(?i)\b([a-z][a-z0-9+.-]*://)"
# Up to the last @ before the path; or, since keys of S3 may hold slashes, a password up to the last @ of all. What
# begins as a port does is no password.
_USER = re.compile(
    _SCHEME + r"(?:([^\s/?#'\"<>]*)@|([^\s/?#'\"<>@:\[]+:(?!\d{1,5}(?:[/?#\s'\"]|$))(?:(?!://)[^\s'\"<>])*)@)"
)
_QUERY = re.compile(r"([?&;])([\w.%-]+)=([^&;#\s'\"<>]+)")
_QUERY_SECRET = re.compile("(?i)^(sig|signature|sas|key)$")


def redact(text: object, *, secrets: Iterable[str] = (), mark: str = HIDDEN + "@") -> str:
    """A text whose URIs have neither user nor password, nor query parameters that are named like secrets.

    `secrets` are hidden, too, wherever they stand. `mark` takes the place of user and password; empty for a URI that is
    to be used again.
    """
    redacted = str(text)
    for secret in sorted(secrets, key=len, reverse=True):
        redacted = redacted.replace(secret, HIDDEN)
    redacted = _USER.sub(lambda match: match[1] + mark, redacted)
    return _QUERY.sub(_without_value, redacted)


def without_credentials(value: Any) -> Any:
    """A Param's value, of any type, to be stored or logged: its texts have no user, password or secret parameter."""
    if isinstance(value, str):
        return redact(value, mark="")
    if isinstance(value, (list, tuple)):
        return type(value)(map(without_credentials, value))
    if isinstance(value, Mapping):
        return {name: without_credentials(item) for name, item in value.items()}
    return value


def _without_value(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}={HIDDEN}" if _is_secret_parameter(match[2]) else match[0]


def _is_secret_parameter(quoted: str) -> bool:
    name = unquote(quoted)
    return is_secret(name) or _QUERY_SECRET.search(name) is not None


def is_secret(name: str) -> bool:
    """Whether a name is that of a secret."""
    return SECRET_NAME.search(name) is not None


def secrets_of_uri(uri: str) -> set[str]:
    """User, password, both, and secret parameters as written in a URI, for errors that show parts of it."""
    parts = {value for _, name, value in _QUERY.findall(uri) if _is_secret_parameter(name)}
    match = _USER.search(uri)
    if match is not None:
        user_info = match[2] or match[3] or ""
        parts |= {user_info, *user_info.split(":", 1)}
    return {p for part in parts for p in (part, unquote(part)) if len(p) >= _SHORTEST_SECRET}


def secrets_of_environment(variables: Mapping[str, str]) -> set[str]:
    """Values of environment variables to search for in a text, without short ones, which any text may contain."""
    return {
        value
        for name, value in variables.items()
        if len(value) >= (_SHORTEST_SECRET if is_secret(name) else _SHORTEST_VALUE)
    }
