"""Checks whether the tracking server answers before MLflow sends a request.

MLflow repeats a failing request for minutes, and a fit must not wait for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator

import mlflow
import requests

from tfos_ml.common.redact import redact
from tfos_ml.common.timeouts import TRACKING_ANSWER_SECONDS

logger = logging.getLogger("tfos_ml.mlflow")

_RETRIES, _REQUEST_TIMEOUT = "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"


def answers(tracking_uri: str) -> bool:
    """Whether a tracking server answers within 5 s; true for stores without HTTP."""
    if not tracking_uri.startswith(("http://", "https://")):
        return True
    try:
        requests.get(f"{tracking_uri.rstrip('/')}/health", timeout=TRACKING_ANSWER_SECONDS)
    except requests.exceptions.SSLError:
        return True  # MLflow may be configured to accept the certificate
    except requests.RequestException:
        return False
    return True


def attempt(action: Callable[[], object], otherwise: str) -> bool:
    """Call `action`; returns whether it worked. If not, log the warning `otherwise`, with the error for its ``%s``."""
    uri = mlflow.get_tracking_uri()
    error: object = "it does not answer"
    try:
        if answers(uri):
            action()
            return True
    except Exception as raised:
        error = raised
    logger.warning(f"MLflow at %s {otherwise}", redact(uri, mark=""), redact(error))
    return False


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Within this context, MLflow tries each request once and waits at most 5 s."""
    before = {name: os.environ.get(name) for name in (_RETRIES, _REQUEST_TIMEOUT)}
    os.environ[_RETRIES], os.environ[_REQUEST_TIMEOUT] = "0", str(int(TRACKING_ANSWER_SECONDS))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
