"""A directory that models and checkpoints could go to: the driver and the executors write and read there."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyarrow import fs

from tfos_ml.common.filesystems import StorageError, open_uri, request
from tfos_ml.common.hadoop import default_fs, driver_places, pyarrow_uri
from tfos_ml.common.redact import redact
from tfos_ml.protocol.paths import absolute_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTENT = b"tfos_ml doctor"


def directory_for(spark: SparkSession, directory: str) -> str:
    """URI of a new directory below `directory`, which the user wrote.

    Raises ``DestinationError`` if Hadoop's settings name credentials that pyarrow cannot get.
    """
    below = absolute_path(directory, default_fs(spark), **driver_places(spark))
    return pyarrow_uri(f"{below.rstrip('/')}/tfos_ml-doctor-{uuid.uuid4().hex[:12]}")


def write_first(uri: str) -> None:
    """Make the directory, and a file in it; raises ``StorageError``."""

    def operation(filesystem: fs.FileSystem, path: str) -> None:
        filesystem.create_dir(path, recursive=True)
        _write(filesystem, f"{path}/driver")

    request(uri, operation)


def read_and_write(uri: str, name: str) -> str:
    """Read the driver's file, and write one; why that does not work, empty if it does."""

    def operation(filesystem: fs.FileSystem, path: str) -> None:
        with filesystem.open_input_stream(f"{path}/driver") as stream:
            if stream.read() != CONTENT:
                raise StorageError("the driver's file has another content here")
        _write(filesystem, f"{path}/{name}")

    try:
        request(uri, operation)
    except OSError as error:
        return redact(error)
    return ""


def written_by(uri: str) -> int:
    """How many files others than the driver have written, as the driver sees it; raises ``StorageError``."""
    return request(uri, lambda filesystem, path: len(filesystem.get_file_info(fs.FileSelector(path))) - 1)


def remove(uri: str) -> None:
    """Delete the directory, if it is there."""
    filesystem, path = open_uri(uri)
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        filesystem.delete_dir(path)


def _write(filesystem: fs.FileSystem, path: str) -> None:
    with filesystem.open_output_stream(path) as stream:
        stream.write(CONTENT)
