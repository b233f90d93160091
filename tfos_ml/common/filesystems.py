"""Filesystems by URI: requests with a deadline, and errors that say what to check but show no password.

A URI carries all that opens it, also on hosts that know nothing of the store: region, endpoint and credentials, with
``session_token`` among the parameters, which pyarrow's own URIs lack. It is pickled to executors and never shown whole.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from tfos_ml.common.hadoop import HADOOP_S3 as _HADOOP_S3
from tfos_ml.common.hadoop import s3_advice
from tfos_ml.common.redact import redact, secrets_of_uri
from tfos_ml.common.timeouts import STORE_ANSWER_SECONDS, STORE_SECONDS, STORE_SILENT_SECONDS

ATTEMPTS = 3  # for S3; pyarrow's own retries take minutes
SLOWEST = 1e6  # bytes per second that every filesystem reads or writes; one that is slower counts as hung
_SHOWN_CHARACTERS = 500
_TOKEN = re.compile(r"([?&])session_token=([^&#]*)&?")
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
    """A request to a filesystem failed; the text contains no password."""


def open_uri(uri: str, silent_seconds: float | None = None) -> tuple[fs.FileSystem, str]:
    """A filesystem of pyarrow, or else of fsspec, and a path in it; raises ``StorageError`` if neither has one.

    S3 raises ``OSError`` after ``ATTEMPTS`` attempts of `silent_seconds` without an answer.
    """
    pyarrows, token = _without_token(uri)
    try:
        filesystem, path = fs.FileSystem.from_uri(pyarrows)
    except (pa.ArrowException, ValueError) as error:
        opened = _open_by_fsspec(uri)
        if opened is not None:
            return opened
        raise StorageError(
            f"it is no absolute path and no URI that pyarrow.fs understands ({_shown(error, uri)}). {_advice(uri)}"
        ) from None
    except OSError as error:
        raise _failure(error, uri) from None
    if filesystem.type_name == "s3":
        filesystem = _impatient(filesystem, silent_seconds or STORE_SILENT_SECONDS, token)
    return filesystem, path


def child_uri(uri: str, name: str) -> str:
    """The URI of a path in a directory, with all parameters of the directory's URI."""
    address, mark, query = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{address.rstrip('/')}/{name}{mark}{query}"


def _without_token(uri: str) -> tuple[str, str]:
    """A URI in pyarrow's form, and the session token that it contained."""
    match = _TOKEN.search(uri) if _scheme(uri) == "s3" else None
    if match is None:
        return uri, ""
    return _TOKEN.sub(r"\1", uri).rstrip("?&"), unquote(match[2])


def _impatient(filesystem: fs.FileSystem, silent_seconds: float, token: str) -> fs.FileSystem:
    """The same filesystem of S3, with timeouts."""
    _, (options,) = filesystem.__reduce__()  # as it is pickled: the arguments of its constructor
    options.update(
        connect_timeout=STORE_ANSWER_SECONDS,
        request_timeout=silent_seconds,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )
    if token:
        options["session_token"] = token
    return fs.S3FileSystem(**options)


def _open_by_fsspec(uri: str) -> tuple[fs.FileSystem, str] | None:
    """A filesystem of fsspec and a path in it; None if fsspec is not installed or does not support the URI."""
    if _scheme(uri) in (*_HADOOP_S3, *_CHECK):  # pyarrow supports it, so something else is wrong
        return None
    try:
        import fsspec
    except ImportError:
        return None
    scheme = _scheme(uri)
    if "://" not in uri or scheme not in fsspec.available_protocols():
        return None
    try:
        filesystem, path = fsspec.core.url_to_fs(uri)
    except Exception as error:  # each of its filesystems has errors of its own
        raise StorageError(f"fsspec cannot open it: {_shown(error, uri)}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path


@contextlib.contextmanager
def storage_errors(uri: str) -> Iterator[None]:
    """Within the context, errors of a filesystem become ``StorageError``, which says what to check."""
    try:
        yield
    except StorageError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _failure(error, uri) from None


def request(uri: str, operation: Callable[[fs.FileSystem, str], T]) -> T:
    """Return ``operation(filesystem, path)``; for short requests, not for copying.

    Raises ``StorageError``, which says what to check, if it fails or takes more than ``STORE_SECONDS`` seconds.
    """

    def run() -> T:
        filesystem, path = open_uri(uri, STORE_ANSWER_SECONDS)
        with storage_errors(uri):
            return operation(filesystem, path)

    return within_deadline(run, uri, STORE_SECONDS) if _scheme(uri) in _CHECK else run()


def write_and_delete(filesystem: fs.FileSystem, path: str) -> None:
    """Write a file, and delete it and the directories made for it, unless others use them by now."""
    directory = path.rpartition("/")[0]
    missing = list(_missing(filesystem, directory))
    filesystem.create_dir(directory, recursive=True)
    with filesystem.open_output_stream(path) as stream:
        stream.write(b"tfos_ml")
    filesystem.delete_file(path)
    for made in missing:
        if filesystem.get_file_info(fs.FileSelector(made)):
            return
        filesystem.delete_dir(made)


def _missing(filesystem: fs.FileSystem, directory: str) -> Iterator[str]:
    """A directory and those above it, if they do not exist."""
    while directory and filesystem.get_file_info(directory).type == fs.FileType.NotFound:
        yield directory
        directory = directory.rpartition("/")[0]


def within_deadline(run: Callable[[], T], uri: str, seconds: float) -> T:
    """Return ``run()``, which uses a filesystem; raises ``StorageError`` if that takes more seconds.

    A filesystem's client may wait for much longer, and nothing can interrupt it: it goes on in a thread.
    """
    outcome: list[Any] = []

    def attempt() -> None:
        try:
            outcome.append((run(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=attempt, name="storage", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise StorageError(f"it has not answered for {round(seconds, 1):g} s{_hint(uri)}")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def _failure(error: Exception, uri: str) -> StorageError:
    return StorageError(f"{_shown(error, uri)}{_hint(uri)}")


def _hint(uri: str) -> str:
    scheme = _scheme(uri)
    return f". Check {_CHECK[scheme]}" if scheme in _CHECK else ""


def _advice(uri: str) -> str:
    if _scheme(uri) in _HADOOP_S3:
        return s3_advice(uri).rstrip(".")
    return (
        "Write an absolute path, or a URI as s3://bucket/path, hdfs://host:port/path or gs://bucket/path; "
        "other stores are opened by fsspec, if that and what it needs for them are installed"
    )


def _shown(error: Exception, uri: str) -> str:
    text = redact(error, secrets=secrets_of_uri(uri))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].lower()
