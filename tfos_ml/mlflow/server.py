"""Whether the tracking server answers, found out before MLflow sends a request.

MLflow repeats a request that fails for minutes. Training is not to wait for that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import requests

TIMEOUT = 5.0
_RETRIES, _REQUEST_TIMEOUT = "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"


def answers(tracking_uri: str) -> bool:
    """Whether a server gives any answer within 5 s; stores that are not reached over HTTP always do."""
    if not tracking_uri.startswith(("http://", "https://")):
        return True
    try:
        requests.get(f"{tracking_uri.rstrip('/')}/health", timeout=TIMEOUT)
    except requests.exceptions.SSLError:
        return True  # MLflow may have been told to trust it
    except requests.RequestException:
        return False
    return True


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """MLflow tries once and waits 5 s: for requests to a server that did not answer before."""
    before = {name: os.environ.get(name) for name in (_RETRIES, _REQUEST_TIMEOUT)}
    os.environ[_RETRIES], os.environ[_REQUEST_TIMEOUT] = "0", str(int(TIMEOUT))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
