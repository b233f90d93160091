"""The training state after each epoch, written atomically.

``modelDir/tfos_ml/epoch-00003-<run>/`` contains the variables that all workers share (written by the chief), one file
for each worker (state of random generators and callbacks), and ``COMPLETE.json`` with the checksums of the other files,
which is written last. A directory without it, or with files that do not match it, does not count; then the one before
is used. The last two complete directories are kept.

``.keras`` files cannot serve as checkpoints, since they lack the state of seed generators.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import random
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import keras
import numpy as np
from pyarrow import fs

from tfos_ml.common.filesystems import StorageError, open_uri, storage_errors
from tfos_ml.common.redact import redact
from tfos_ml.errors import ModelDirError, ModelError
from tfos_ml.keras.collectives import Array, WorkerGroup
from tfos_ml.keras.fence import Fence
from tfos_ml.keras.model_dir import FOLDER
from tfos_ml.worker import keras_privates

KEPT = 2
_COMPLETE = "COMPLETE.json"
_SHARED = "shared.npz"


@dataclass
class TrainingState:
    """Everything that the rest of a training depends on."""

    epoch: int  # number of completed epochs
    stopped: bool  # whether a callback has ended the training
    history: list[dict[str, float]]  # logs of each epoch
    identity: str  # fingerprint of the model and its settings
    fingerprint: str  # of the input
    shared: list[Array]  # variables that are equal on all workers
    own: dict[str, Any] = field(default_factory=dict)  # this worker's: other variables, random generators, callbacks


class DamagedError(ValueError):
    """A file of a checkpoint is not as it was written."""


class Checkpoints:
    """The checkpoints of one ``modelDir``, which all workers must reach; the chief writes what all share."""

    def __init__(self, uri: str, run_id: str, group: WorkerGroup, is_chief: bool):
        self._uri = uri
        self._fs, path = open_uri(uri)
        self._root = f"{path.rstrip('/')}/{FOLDER}"
        self._run_id = run_id
        self._group = group
        self._is_chief = is_chief
        self._fence: Fence | None = None

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint; called by all workers together.

        On the chief, raises ``SupersededError`` if a later attempt has taken over the directory. Raises
        ``ModelDirError`` if the store fails; what is written by then does not count.
        """
        with _store_errors(self._uri, "written"):
            self._save(state)

    def _save(self, state: TrainingState) -> None:
        name = f"epoch-{state.epoch:05d}-{self._run_id}"
        self._fs.create_dir(f"{self._root}/{name}", recursive=True)
        files = [*(_own_file(rank) for rank in range(self._group.size)), _SHARED]
        checksums = np.zeros(len(files), np.int64)
        mine = _own_file(self._group.rank)
        checksums[self._group.rank] = self._write(f"{name}/{mine}", cloudpickle.dumps(state.own))
        if self._is_chief:
            checksums[-1] = self._write(f"{name}/{_SHARED}", _pack(state.shared))
        (checksums,) = self._group.sum_arrays([checksums])  # all have written when this is known
        if self._is_chief:
            self._taken().check()
            about = {k: getattr(state, k) for k in ("epoch", "stopped", "history", "identity", "fingerprint")}
            about["files"] = dict(zip(files, checksums.tolist(), strict=True))
            self._write(f"{name}/{_COMPLETE}", json.dumps(about).encode())
            self._remove_old()

    def _write(self, path: str, data: bytes) -> int:
        """Write a file under another name first; returns a checksum of its content and length."""
        target = f"{self._root}/{path}"
        with self._fs.open_output_stream(f"{target}.partial") as stream:
            stream.write(data)
        self._fs.move(f"{target}.partial", target)
        return _checksum(data)

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
        dirs = [i for i in infos if i.type == fs.FileType.Directory and i.base_name.startswith("epoch-")]
        dirs.sort(key=lambda i: (i.base_name.split("-")[1], i.mtime_ns or 0), reverse=True)
        return [i.base_name for i in dirs]

    def _remove_old(self) -> None:
        """Delete what is older than the last complete ones, and what does not count."""
        complete = 0
        for name in self._names():
            if complete == KEPT or not self._taken().counts(name):
                self._fs.delete_dir(f"{self._root}/{name}")
            elif self._fs.get_file_info(f"{self._root}/{name}/{_COMPLETE}").type == fs.FileType.File:
                complete += 1

    def load(self) -> TrainingState | None:
        """The newest complete checkpoint, the same on all workers; None if there is none.

        Raises ``ModelError`` if some worker cannot read what the chief can, and on the chief ``SupersededError`` if a
        later attempt comes meanwhile, and ``ModelDirError`` if the store fails.
        """
        text = ""
        if self._is_chief:
            with _store_errors(self._uri, "taken over"):
                self._taken()
                text = self._newest()
        text = self._group.broadcast_text(text, self._is_chief)
        if not text:
            return None
        about = json.loads(text)
        files, name = about.pop("files"), about.pop("name")
        state, problem = None, ""
        try:
            shared = _unpack(self._read(f"{name}/{_SHARED}", files[_SHARED]))
            last_rank = len(files) - 2  # there is one file for each worker, and the shared one
            mine = _own_file(min(self._group.rank, last_rank))  # a new worker takes the random states of another
            own = _unpickle(self._read(f"{name}/{mine}", files[mine]))
            state = TrainingState(**about, shared=shared, own=own)
        except (OSError, DamagedError) as error:
            problem = redact(error)
        if self._group.largest(0.0 if state is not None else 1.0):
            raise ModelError(
                f"modelDir={redact(self._uri)!r} holds a checkpoint of epoch {about['epoch']} that not every worker "
                f"can read {problem}. Put modelDir on storage that all nodes reach alike."
            )
        return state

    def _newest(self) -> str:
        for name in filter(self._taken().counts, self._names()):
            try:
                with self._fs.open_input_stream(f"{self._root}/{name}/{_COMPLETE}") as stream:
                    about = json.loads(stream.read())
                for file, checksum in about["files"].items():
                    self._read(f"{name}/{file}", checksum)
                return json.dumps({**about, "name": name})
            except (FileNotFoundError, ValueError, KeyError) as error:  # and no error of a store that fails
                warnings.warn(
                    f"Checkpoint {name} in {redact(self._uri)} is incomplete and is skipped: {redact(error)}",
                    stacklevel=2,
                )
        return ""

    def _read(self, path: str, checksum: int) -> bytes:
        with self._fs.open_input_stream(f"{self._root}/{path}") as stream:
            data: bytes = stream.read()
        if _checksum(data) != checksum:
            raise DamagedError(f"{path} is damaged")
        return data


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


def _own_file(rank: int) -> str:
    return f"worker-{rank}.pkl"


def _checksum(data: bytes) -> int:
    return zlib.crc32(data) << 30 ^ len(data)


def _pack(arrays: list[Array]) -> bytes:
    file = io.BytesIO()
    named: dict[str, Any] = {f"a{i}": _plain(a) for i, a in enumerate(arrays)}
    np.savez(file, **named)
    return file.getvalue()


def _plain(array: Array) -> Array:
    """An array of a dtype that ``npz`` supports; bfloat16 is widened without loss."""
    return array if array.dtype.kind in "fiub" else array.astype(np.float32)


def _unpack(data: bytes) -> list[Array]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return [arrays[f"a{i}"] for i in range(len(arrays.files))]


# The parts of a state


def split_variables(model: keras.Model) -> tuple[list[Any], list[Any]]:
    """Variables that are saved with a model, and the states of its seed generators."""
    variables = [*model.variables, *(v for o in keras_privates.optimizers(model) for v in o.variables)]
    own = keras_privates.seed_states(model)
    return [v for v in variables if all(v is not seed for seed in own)], own


def assign_all(variables: list[Any], arrays: list[Array]) -> None:
    """Set variables to arrays, in order."""
    if [tuple(v.shape) for v in variables] != [a.shape for a in arrays]:
        raise ModelError("The checkpoint in modelDir is of another model. Choose another modelDir.")
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def random_state() -> dict[str, Any]:
    """State of Python's and NumPy's global random generators."""
    return {"python": random.getstate(), "numpy": np.random.get_state()}


def set_random_state(state: dict[str, Any]) -> None:
    """The reverse of :func:`random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def callback_state(callbacks: list[Any]) -> list[bytes | None]:
    """Each callback's attributes, pickled; None for one that cannot be."""
    states: list[bytes | None] = []
    for callback in callbacks:
        kept = {k: v for k, v in vars(callback).items() if k not in ("_model", "model", "params") and _is_state(v)}
        try:
            states.append(cloudpickle.dumps(kept))
        except Exception:  # open files, threads: such a callback starts over
            states.append(None)
    return states


def _is_state(value: Any) -> bool:
    """Whether a value is data, or a function that can be found by name; not a closure with its own state."""
    if not callable(value):
        return True
    try:
        return bool(pickle.dumps(value))
    except Exception:
        return False


def set_callback_state(callbacks: list[Any], states: list[bytes | None]) -> None:
    """The reverse of :func:`callback_state`."""
    for callback, state in zip(callbacks, states, strict=True):
        if state is not None:
            vars(callback).update(_unpickle(state))


def _unpickle(data: bytes) -> Any:
    """Unpickle what this package has written to ``modelDir``, which must be as trustworthy as the program itself."""
    return pickle.loads(data)  # noqa: S301
