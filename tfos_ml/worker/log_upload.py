"""Copies event files to stores that TensorFlow cannot write to."""

from __future__ import annotations

from pathlib import Path

from pyarrow.fs import FileSystem

from tfos_ml.common.filesystems import StorageError, open_uri, storage_errors
from tfos_ml.common.redact import redact


class LogUpload:
    """Copies changed files of a node's directory to a URI.

    Parameters
    ----------
    directory : str
        The directory that the train function writes to; it need not exist yet.
    uri : str or None
        A URI for ``filesystems.open_uri``; None if TensorFlow itself writes to ``logDir``.
    """

    def __init__(self, directory: str, uri: str | None):
        self._directory = Path(directory)
        self._uri = uri
        self._copied: dict[Path, tuple[int, int]] = {}  # size and time of each file that has been copied
        self.problem = ""

    def run(self) -> bool:
        """Copy changed files; returns whether all have been copied. If not, ``problem`` says why.

        Failures do not end the training: the next call tries again.
        """
        if self._uri is None:
            return True
        try:
            with storage_errors(self._uri):
                self._copy(*open_uri(self._uri))
        except StorageError as error:
            self.problem = f"Event files could not be copied to logDir={redact(self._uri)!r}: {error}."
            return False
        self.problem = ""
        return True

    def _copy(self, filesystem: FileSystem, root: str) -> None:
        for file in sorted(path for path in self._directory.rglob("*") if path.is_file()):
            state = (file.stat().st_size, file.stat().st_mtime_ns)
            if self._copied.get(file) == state:
                continue
            target = f"{root.rstrip('/')}/{file.relative_to(self._directory).as_posix()}"
            filesystem.create_dir(target.rpartition("/")[0], recursive=True)
            with filesystem.open_output_stream(target, compression=None) as stream:
                stream.write(file.read_bytes())
            self._copied[file] = state
