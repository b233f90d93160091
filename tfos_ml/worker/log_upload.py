"""Event files to stores that TensorFlow cannot write: they are written beside the node, and copied whole."""

from __future__ import annotations

from pathlib import Path

from pyarrow.fs import FileSystem

from tfos_ml.common.filesystems import StorageError, open_uri, storage_errors
from tfos_ml.common.redact import redact


class LogUpload:
    """Copies what has changed in a node's directory to a URI.

    Parameters
    ----------
    directory : str
        Where the train function writes, also when it is not there yet.
    uri : str or None
        As ``filesystems.open_uri`` takes it; None where TensorFlow writes to ``logDir`` by itself.
    """

    def __init__(self, directory: str, uri: str | None):
        self._directory = Path(directory)
        self._uri = uri
        self._copied: dict[Path, tuple[int, int]] = {}  # size and time of each file that has been copied
        self.problem = ""

    def run(self) -> bool:
        """Copy what is new; whether all of it is there now. Else ``problem`` says what is missing, and why.

        A store that fails ends no training: the next call copies what this one has not.
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
