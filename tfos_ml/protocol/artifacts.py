"""Sends bytes and files from the driver to the executors, without a shared filesystem.

Small ones are part of the task; large ones are Spark artifacts, named by the hash of their content, because Spark
cannot replace an artifact. Spark deletes them with the session. Streaming queries of Spark Connect run in a session of
their own, without the client's artifacts: they read large ones from the directory ``spark.tfos_ml.sharedDir``.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyarrow import fs

from tfos_ml.common.directories import owned_prefix
from tfos_ml.common.filesystems import open_uri
from tfos_ml.common.local_files import Content, LocalFile, file_of, parts_of
from tfos_ml.common.redact import redact, secrets_of_uri
from tfos_ml.common.session_settings import SHARED_DIR
from tfos_ml.common.sessions import is_connect
from tfos_ml.common.spark_api import add_file
from tfos_ml.errors import ClusterConfigError, DestinationError, ModelError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INLINE_BYTES = 256 << 10
QUERY_BYTES = 64 << 20  # at most so much is part of a query's tasks; Spark Connect allows 128 MiB
_PREFIX = "tfos_ml-"
_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
"""Names of the files that a client of Spark Connect has sent, by session: it cannot ask the server."""


@dataclass(frozen=True)
class Artifact:
    """Bytes that can be read on every executor."""

    name: str  # of a file, unique to the content
    inline: bytes | None = None  # the content itself, if it is small
    uri: str | None = None  # of a file that all executors read, where Spark delivers none

    def read(self) -> bytes:
        """The content; on an executor."""
        return self.inline if self.inline is not None else self.path().read_bytes()

    def parts(self) -> Iterator[bytes]:
        """The content in order, a part at a time; on an executor."""
        return parts_of(self.path() if self.inline is None else self.inline)

    def path(self) -> Path:
        """The file on this executor: delivered by Spark, or else written to the place where Spark would put it."""
        from pyspark import SparkFiles

        path = Path(SparkFiles.get(self.name))
        if self.inline is not None:
            _write(path, self.inline)
        elif self.uri is not None:
            _fetch(self.uri, path)
        return path


def publish(spark: SparkSession, content: Content) -> Artifact:
    """Make bytes or a file available to all executors of a session, classic or Connect."""
    if isinstance(content, bytes) and len(content) <= INLINE_BYTES:
        return Artifact(f"{_PREFIX}{hashlib.sha256(content).hexdigest()}", content)
    file = file_of(content)
    name = f"{_PREFIX}{file.digest}"
    if is_connect(spark):
        sent = _sent.setdefault(spark, set())
        if name not in sent:
            with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
                _add(spark, Path(directory) / name, file)
            sent.add(name)
    elif not any(uri.endswith(f"/{name}") for uri in spark.sparkContext.listFiles):  # Spark would warn of it
        # Executors fetch from where the file lies, so it has to stay: Spark's own temporary directory.
        _add(spark, Path(spark.sparkContext._temp_dir) / name, file)
    return Artifact(name)


def publish_for(df: DataFrame, file: LocalFile) -> Artifact:
    """Make a file available to the tasks that compute a DataFrame.

    Raises ``ClusterConfigError`` if that needs ``spark.tfos_ml.sharedDir`` and it is not set, ``DestinationError`` if
    nothing can be written there.
    """
    spark = df.sparkSession
    if not (is_connect(spark) and df.isStreaming):
        return publish(spark, file)
    if file.size <= QUERY_BYTES:
        return Artifact(f"{_PREFIX}{file.digest}", file.read())
    directory = SHARED_DIR.of(spark)
    if not directory:
        raise ClusterConfigError(
            f"The model has {file.size >> 20} MiB. A streaming query of Spark Connect has no files of its session, and "
            f"its tasks can carry models of at most {QUERY_BYTES >> 20} MiB. Set {SHARED_DIR} to a directory or URI "
            "that this client and all executors can reach: the model is written there, under the hash of its content."
        )
    return _share(directory, file)


def _share(directory: str, file: LocalFile) -> Artifact:
    """Write a file into a directory that executors reach, unless it is there."""
    name = f"{_PREFIX}{file.digest}"
    uri = f"{directory.rstrip('/')}/{name}"
    try:
        filesystem, path = open_uri(uri)
        if filesystem.get_file_info(path).size != file.size:
            partial = f"{path}.partial-{uuid.uuid4().hex[:12]}"
            filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            fs.copy_files(str(file.path), partial, fs.LocalFileSystem(), filesystem)
            filesystem.move(partial, path)
    except (pa.ArrowException, OSError) as error:
        why = redact(error, secrets=secrets_of_uri(uri))
        raise DestinationError(f"{SHARED_DIR}={redact(directory)!r} cannot be written: {why}") from None
    return Artifact(name, uri=uri)


def _fetch(uri: str, path: Path) -> None:
    """Copy a file that executors reach, and that is named by its hash, to this one's disk, unless it is there.

    Raises ``ModelError`` if it has another content: others may write to its directory, and a model runs code.
    """
    if path.exists():
        return
    filesystem, source = open_uri(uri)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="tfos_ml-") as directory:
        copy = os.path.join(directory, path.name)
        fs.copy_files(source, copy, filesystem, fs.LocalFileSystem())
        digest = hashlib.sha256()
        for part in parts_of(Path(copy)):
            digest.update(part)
        actual = digest.hexdigest()
        if path.name != f"{_PREFIX}{actual}":
            raise ModelError(
                f"{redact(uri)} has another content than was written there (SHA-256 {actual}). Delete it, and let "
                f"nobody else write to {SHARED_DIR}."
            )
        os.replace(copy, path)


def _add(spark: SparkSession, path: Path, file: LocalFile) -> None:
    file.link(path)
    add_file(spark, str(path))


def _write(path: Path, data: bytes) -> None:
    """Write a file that is named by its content; other processes may write the same."""
    if path.exists():
        return
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
        partial.write(data)
    os.replace(partial.name, path)
