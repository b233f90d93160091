"""Copies event files to stores that TensorFlow cannot write to."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tfos_ml.common.filesystems import SLOWEST, StorageError, open_uri, storage_errors, within_deadline
from tfos_ml.common.redact import redact
from tfos_ml.common.timeouts import STORE_SECONDS


class LogUpload:
    """Copies changed files of a node's directory, which need not exist yet, to a URI, if there is one."""

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
        changed = self._changed()
        seconds = STORE_SECONDS + sum(size for size, _ in changed.values()) / SLOWEST
        try:
            within_deadline(partial(self._copy, self._uri, changed), self._uri, seconds)
        except StorageError as error:
            self.problem = f"Event files could not be copied to logDir={redact(self._uri)!r}: {error}."
            return False
        self.problem = ""
        return True

    def _changed(self) -> dict[Path, tuple[int, int]]:
        """Size and time of each file that is new, or that has changed since it was copied."""
        files = sorted(path for path in self._directory.rglob("*") if path.is_file())
        states = {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
        return {file: state for file, state in states.items() if self._copied.get(file) != state}

    def _copy(self, uri: str, changed: dict[Path, tuple[int, int]]) -> None:
        with storage_errors(uri):
            filesystem, root = open_uri(uri)
            for file, state in changed.items():
                target = f"{root.rstrip('/')}/{file.relative_to(self._directory).as_posix()}"
                filesystem.create_dir(target.rpartition("/")[0], recursive=True)
                with filesystem.open_output_stream(target, compression=None) as stream:
                    stream.write(file.read_bytes())
                self._copied[file] = state
