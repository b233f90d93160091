"""Bytes that travel from the driver to the executors without a shared filesystem.

Small ones go along in the task itself; large ones are Spark artifacts, named by the hash of
their content because Spark cannot replace an artifact. Spark deletes them with the session.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfos_ml.common.sessions import is_connect
from tfos_ml.common.spark_api import add_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INLINE_BYTES = 256 << 10


@dataclass(frozen=True)
class Artifact:
    """Bytes that can be read on every executor."""

    name: str  # of a file, unique to the content
    inline: bytes | None = None  # the content itself, if it is small

    def read(self) -> bytes:
        """The content; on an executor."""
        return self.inline if self.inline is not None else self.path().read_bytes()

    def path(self) -> Path:
        """The file that Spark delivered to this executor; what came along in the task is put where that would lie."""
        from pyspark import SparkFiles

        path = Path(SparkFiles.get(self.name))
        if self.inline is not None:
            _write(path, self.inline)
        return path


def publish(
    spark: SparkSession, data: bytes, *, inline_up_to: int = INLINE_BYTES, digest: str | None = None
) -> Artifact:
    """Make bytes, whose hash may be known, available to all executors of a session, classic or Connect."""
    name = f"tfos_ml-{digest or hashlib.sha256(data).hexdigest()}"
    if len(data) <= inline_up_to:
        return Artifact(name, data)
    if is_connect(spark):
        with tempfile.TemporaryDirectory(prefix="tfos_ml-") as directory:
            _add(spark, Path(directory) / name, data)
    else:
        # Executors fetch from where the file lies, so it has to stay: Spark's own temporary directory.
        _add(spark, Path(spark.sparkContext._temp_dir) / name, data)
    return Artifact(name)


def publish_for(df: DataFrame, data: bytes, digest: str) -> Artifact:
    """Make bytes, whose hash is known, available to the tasks that compute a DataFrame.

    Streaming queries of Spark Connect run in a session of their own, which has none of this one's artifacts: there the
    bytes go along in the tasks.
    """
    goes_along = is_connect(df.sparkSession) and df.isStreaming
    return publish(df.sparkSession, data, inline_up_to=len(data) if goes_along else 0, digest=digest)


def _add(spark: SparkSession, path: Path, data: bytes) -> None:
    if _is_added(spark, path.name):  # Spark would warn of it
        return
    _write(path, data)
    add_file(spark, str(path))


def _is_added(spark: SparkSession, name: str) -> bool:
    return not is_connect(spark) and any(uri.endswith(f"/{name}") for uri in spark.sparkContext.listFiles)


def _write(path: Path, data: bytes) -> None:
    """Write a file whose name tells its content; others may do the same."""
    if path.exists():
        return
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
        partial.write(data)
    os.replace(partial.name, path)
