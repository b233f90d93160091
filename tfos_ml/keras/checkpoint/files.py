"""The training state at some steps, written atomically by the chief.

``modelDir/tfos_ml/epoch-00003-step-000000-<run>/`` contains

- ``model.weights.h5``: the variables of the model and its optimizers, as Keras itself writes and loads them;
- ``arrays.npz``: variables that Keras leaves out, and states of random generators and metrics;
- ``callbacks.pkl``, if a callback has state;
- ``state.json``: everything else, and the checksums of the other files. It is written last.

A directory without it, or with files that do not match it, does not count; then the one before is used. The last two
complete directories are kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pyarrow import fs

from tfos_ml.common.filesystems import SLOWEST, StorageError, open_uri, storage_errors
from tfos_ml.common.redact import redact
from tfos_ml.errors import ModelDirError
from tfos_ml.keras.checkpoint.directory import FOLDER
from tfos_ml.keras.checkpoint.fence import Fence
from tfos_ml.keras.checkpoint.state import STATE, WEIGHTS, TrainingState

KEPT = 2
FORMAT = 4  # of what the files contain
_BLOCK = 1 << 20
_NAME = re.compile(r"epoch-(\d+)-step-(\d+)-")


class Checkpoints:
    """The checkpoints of one ``modelDir``, as a context manager; used by the chief.

    A thread writes them, and calls `written` after each. What goes wrong there is raised by the next call, or by the
    end of the context. A store may take `timeout` seconds for a checkpoint, and the time for its bytes at
    ``filesystems.SLOWEST``.
    """

    def __init__(
        self,
        uri: str,
        run_id: str,
        written: Callable[[TrainingState], None] = lambda state: None,
        timeout: float = 600.0,
    ):
        self._uri = uri
        self._timeout = timeout
        self._deadline = 0.0
        self._written = written
        self._fs, path = open_uri(uri)
        self._root = f"{path.rstrip('/')}/{FOLDER}"
        self._run_id = run_id
        self._fence: Fence | None = None
        self._thread: threading.Thread | None = None
        self._failures: list[BaseException] = []  # of the thread
        self._scratch = Path(tempfile.mkdtemp(prefix="tfos_ml-checkpoint-"))

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            with contextlib.nullcontext() if error is None else contextlib.suppress(Exception):
                self.wait()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    # Writing

    @property
    def weights_file(self) -> Path:
        """The file of the weights, a part of each checkpoint, which :meth:`load` copies.

        Write it after :meth:`wait`, and before :meth:`save`.
        """
        return self._scratch / WEIGHTS

    def save(self, state: TrainingState) -> None:
        """Begin to write a checkpoint, in a thread.

        Raises ``SupersededError`` if a later attempt has taken over the directory, and ``ModelDirError`` if the store
        fails; what is written by then does not count.
        """
        self.wait()
        self._start(lambda: self._write_checkpoint(state))

    def wait(self) -> None:
        """Wait until the last checkpoint is written; raises as :meth:`save`."""
        thread, self._thread = self._thread, None
        while thread is not None and thread.is_alive() and self._deadline > time.monotonic():
            thread.join(self._deadline - time.monotonic())  # the thread may postpone it
        failures, self._failures = self._failures, []
        if failures:
            raise failures[0]
        if thread is not None and thread.is_alive():
            raise ModelDirError(
                f"modelDir={redact(self._uri)!r} has not answered for feedTimeout={self._timeout:g} s. Check the "
                "store, or raise feedTimeout. A later fit resumes from the last complete checkpoint"
            )

    def _start(self, work: Callable[[], None]) -> None:
        """Have a thread do some work, for :meth:`wait`."""
        failures = self._failures

        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # for the training's thread
                failures.append(error)

        self._postpone(0)
        self._thread = threading.Thread(target=guarded, name="tfos_ml-checkpoint", daemon=True)
        self._thread.start()

    def _postpone(self, size: int) -> None:
        """Give the store time for some bytes, from now on."""
        self._deadline = time.monotonic() + self._timeout + size / SLOWEST

    def _write_checkpoint(self, state: TrainingState) -> None:
        name = f"epoch-{state.epoch:05d}-step-{state.step:06d}-{self._run_id}"
        self._postpone(self.weights_file.stat().st_size)
        with _store_errors(self._uri, "written"):
            self._taken()
            self._fs.create_dir(f"{self._root}/{name}", recursive=True)
            contents = state.to_files()
            about = {"format": FORMAT, "state": contents.pop(STATE).decode()}
            with open(self.weights_file, "rb") as weights:
                checksums = {WEIGHTS: self._write(f"{name}/{WEIGHTS}", weights)}
            checksums |= {file: self._write(f"{name}/{file}", io.BytesIO(data)) for file, data in contents.items()}
            self._taken().check()
            self._write(f"{name}/{STATE}", io.BytesIO(json.dumps({**about, "files": checksums}).encode()))
            self._remove_old()
        self._written(state)

    def _write(self, path: str, source: BinaryIO) -> int:
        """Write a file; returns its checksum."""
        with self._fs.open_output_stream(f"{self._root}/{path}") as stream:
            return _copy(source, stream)

    def _taken(self) -> Fence:
        """The claim of this attempt to the directory; it continues from the checkpoints that count now."""
        if self._fence is None:
            fence = Fence(self._fs, self._root, self._run_id)
            accepted = [name for name in self._names() if fence.counts(name)]
            self._fs.create_dir(self._root, recursive=True)
            fence.take(accepted)
            self._fence = fence
        return self._fence

    def _names(self) -> list[str]:
        """Directories of checkpoints, newest first."""
        infos = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        dirs = [i for i in infos if i.type == fs.FileType.Directory and _NAME.match(i.base_name)]
        dirs.sort(key=lambda i: (*_position(i.base_name), i.mtime_ns or 0), reverse=True)
        return [i.base_name for i in dirs]

    def _remove_old(self) -> None:
        """Delete what is older than the last complete ones, and what does not count."""
        complete = 0
        for name in self._names():
            if complete == KEPT or not self._taken().counts(name):
                self._fs.delete_dir(f"{self._root}/{name}")
            elif self._fs.get_file_info(f"{self._root}/{name}/{STATE}").type == fs.FileType.File:
                complete += 1

    # Reading

    def load(self) -> TrainingState | None:
        """The state of the newest complete checkpoint, whose weights are copied; None if there is none.

        Raises ``SupersededError`` if a later attempt comes meanwhile, and ``ModelDirError`` if the store fails.
        """
        self.wait()
        found: list[TrainingState | None] = []
        self._start(lambda: found.append(self._load()))
        self.wait()
        return found[0]

    def _load(self) -> TrainingState | None:
        with _store_errors(self._uri, "taken over"):
            for name in filter(self._taken().counts, self._names()):
                try:
                    return self._read_all(name)
                # None of these is an error of a store.
                except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                    warnings.warn(
                        f"Checkpoint {name} in {redact(self._uri)} is incomplete and is skipped: {redact(error)}",
                        stacklevel=2,
                    )
        return None

    def _read_all(self, name: str) -> TrainingState:
        with self._fs.open_input_stream(f"{self._root}/{name}/{STATE}") as stream:
            about = json.loads(stream.read())
        if about["format"] != FORMAT:
            raise ModelDirError(
                f"modelDir={redact(self._uri)!r} has a checkpoint of format {about['format']}, written by another "
                f"version of tfos_ml; this one reads format {FORMAT}. Choose another modelDir."
            )
        files = {STATE: about["state"].encode()}
        for file, checksum in about["files"].items():
            if file == WEIGHTS:
                self._postpone(self._fs.get_file_info(f"{self._root}/{name}/{file}").size or 0)
                with open(self.weights_file, "wb") as weights:
                    self._read(f"{name}/{file}", weights, checksum)
            else:
                self._read(f"{name}/{file}", data := io.BytesIO(), checksum)
                files[file] = data.getvalue()
        return TrainingState.from_files(files)

    def _read(self, path: str, target: BinaryIO, checksum: int) -> None:
        with self._fs.open_input_stream(f"{self._root}/{path}") as stream:
            if _copy(stream, target) != checksum:
                raise ValueError(f"{path} is damaged")


@contextlib.contextmanager
def _store_errors(uri: str, what: str) -> Iterator[None]:
    """Errors of the store within as ``ModelDirError``."""
    try:
        with storage_errors(uri):
            yield
    except StorageError as error:
        raise ModelDirError(
            f"modelDir={redact(uri)!r} cannot be {what}: {error}. A later fit resumes from the last complete checkpoint"
        ) from None


def _position(name: str) -> tuple[int, int]:
    """The epoch and the step in the name of a checkpoint."""
    match = _NAME.match(name)
    assert match is not None
    return int(match[1]), int(match[2])


def _copy(source: Any, target: Any) -> int:
    """Copy a stream; returns a checksum of its content and length."""
    crc = size = 0
    while block := source.read(_BLOCK):
        crc, size = zlib.crc32(block, crc), size + len(block)
        target.write(block)
    return crc << 30 ^ size
