"""Filesystems by URI: requests with a deadline, and errors that say what to check and no password."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from tfos_ml.common.hadoop import s3_advice
from tfos_ml.common.redact import redact, secrets_of_uri

DEADLINE = 30.0
"""Seconds that a filesystem may take to answer."""
ANSWER_SECONDS, ATTEMPTS = 5.0, 3
"""Of S3: seconds for one request, and how often it is tried; pyarrow's own retries take minutes."""
_SHOWN_CHARACTERS = 500
_CHECK = {
    "s3": "the credentials (in the URI or as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), the bucket, the region "
    "(?region=), the endpoint (?endpoint_override=) and the network",
    "hdfs": "the address of the namenode, that JAVA_HOME, HADOOP_HOME and CLASSPATH are set (see pyarrow.fs."
    "HadoopFileSystem), and the network",
    "gs": "the credentials (GOOGLE_APPLICATION_CREDENTIALS), the bucket and the network",
    "abfs": "the credentials, the account, the container and the network",
}
_CHECK |= {"viewfs": _CHECK["hdfs"], "gcs": _CHECK["gs"], "abfss": _CHECK["abfs"]}

T = TypeVar("T")


class StorageError(OSError):
    """A request to a filesystem failed; the text holds no password."""


def open_uri(uri: str) -> tuple[fs.FileSystem, str]:
    """A filesystem and a path in it; raises ``StorageError`` if there is none."""
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, ValueError) as error:
        raise StorageError(
            f"it is no absolute path and no URI that pyarrow.fs understands ({_shown(error, uri)}). {_advice(uri)}"
        ) from None
    except OSError as error:
        raise _failure(error, uri) from None
    return filesystem, path


def request(uri: str, operation: Callable[[fs.FileSystem, str], T]) -> T:
    """What ``operation(filesystem, path)`` returns; for short requests, not for copying.

    Raises ``StorageError`` if it fails, or takes more than ``DEADLINE`` seconds; says what to check.
    """

    def run() -> T:
        filesystem, path = open_uri(uri)
        try:
            return operation(_impatient(filesystem), path)
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise _failure(error, uri) from None

    return _within_deadline(run, uri) if _scheme(uri) in _CHECK else run()


def _within_deadline(run: Callable[[], T], uri: str) -> T:
    """A filesystem's client may wait for much longer, and nothing can interrupt it."""
    outcome: list[Any] = []

    def attempt() -> None:
        try:
            outcome.append((run(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=attempt, name="storage", daemon=True)
    thread.start()
    thread.join(DEADLINE)
    if not outcome:
        raise StorageError(f"it has not answered for {DEADLINE:g} s. Check {_CHECK[_scheme(uri)]}")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def _impatient(filesystem: fs.FileSystem) -> fs.FileSystem:
    """The same filesystem, which gives up within the deadline if it is S3."""
    if filesystem.type_name != "s3":
        return filesystem
    _, (options,) = filesystem.__reduce__()  # as it is pickled: the arguments of its constructor
    options.update(
        connect_timeout=ANSWER_SECONDS,
        request_timeout=ANSWER_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )
    return fs.S3FileSystem(**options)


def _failure(error: Exception, uri: str) -> StorageError:
    scheme = _scheme(uri)
    hint = f". Check {_CHECK[scheme]}" if scheme in _CHECK else ""
    return StorageError(f"{_shown(error, uri)}{hint}")


def _advice(uri: str) -> str:
    if _scheme(uri) in ("s3a", "s3n"):
        return s3_advice(uri).rstrip(".")
    return "Write an absolute path, or a URI as s3://bucket/path, hdfs://host:port/path or gs://bucket/path"


def _shown(error: Exception, uri: str) -> str:
    text = redact(error, secrets=secrets_of_uri(uri))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].lower()
