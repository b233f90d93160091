"""SavedModels as tar files: packed on a node or on the driver, fetched from a URI, unpacked once an executor.

To the executors the file travels as an artifact of Spark's. The first Python worker that needs the model unpacks it
into ``tfos_ml-models`` beside that file, where Spark deletes both alike, with the session or the application:

==================================  ==========================================================
``<hash of its content>/``          a model
``<hash of its content>.users``     locked, shared, by each process that uses the model
``.lock``                           locked by the process that adds or deletes a model
==================================  ==========================================================

All locks are ``flock``, which the kernel releases however a process ends. A process that adds a model deletes those
that no process uses, but for the last ``UNUSED_MODELS``.

``addArtifacts(archive=True)`` would unpack them, too, but on every executor before its next task of whatever job, for
good, with no check of what came out; and not for streaming queries on Spark Connect, whose sessions have no artifacts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from tfos_ml.common.directories import TemporaryDirectory
    from tfos_ml.protocol.artifacts import Artifact

FOLDER = "tfos_ml-models"
LOADED_MODELS = 4
"""Models that a process uses at a time; of more, those used last."""
UNUSED_MODELS = 4
LOCK_TIMEOUT = 300.0
_LOCK, _USERS, _PARTIAL = ".lock", ".users", ".partial-"
_LOCK_POLL = 0.02
_CHUNK = 1 << 20

_in_use: OrderedDict[Path, IO[bytes]] = OrderedDict()
"""Models that this process uses, with their locks."""
_one_thread = threading.Lock()


class Archive:
    """A packed SavedModel in memory; copies of a ``TFModel`` share it.

    `content` is the tar file, as :func:`pack` makes it, `source` the URI that it was fetched from, and what
    :func:`tfos_ml.inference.publishing.listing` returned then.
    """

    def __init__(self, content: bytes, source: tuple[str, object] | None = None):
        self.content = content
        self._source = source

    @classmethod
    def of(cls, directory: str | Path) -> Archive:
        """The SavedModel in a local directory."""
        with tempfile.TemporaryDirectory(prefix="tfos_ml-") as packed:
            return cls(pack(str(directory), Path(packed)).read_bytes())

    @classmethod
    def fetch(cls, uri: str) -> Archive:
        """The SavedModel at a URI; raises as :func:`tfos_ml.inference.publishing.fetch`."""
        from tfos_ml.inference import publishing

        with tempfile.TemporaryDirectory(prefix="tfos_ml-") as directory:
            listing = publishing.fetch(uri, f"{directory}/saved_model")
            return cls(cls.of(f"{directory}/saved_model").content, (uri, listing))

    @property
    def is_fetched(self) -> bool:
        """Whether it can be fetched again."""
        return self._source is not None

    def is_current(self) -> bool:
        """Whether the files at its URI have the sizes and times that were fetched; true if it was not fetched."""
        from tfos_ml.inference import publishing

        return self._source is None or publishing.listing(self._source[0]) == self._source[1]

    @cached_property
    def digest(self) -> str:
        """Hash of the content; names the model on executors."""
        return hashlib.sha256(self.content).hexdigest()

    def member(self, name: str) -> bytes | None:
        """A small file that lies beside the SavedModel, if it is there."""
        with self._open() as tar:
            if name not in tar.getnames():
                return None
            file = tar.extractfile(name)
            return file.read() if file else None

    def unpack(self, directory: str | Path) -> None:
        """Write all files into a directory; raises as :func:`extract`."""
        with self._open() as tar:
            extract(tar, Path(directory))

    @property
    def directory(self) -> str:
        """A local directory with the SavedModel, which is deleted with this object."""
        return str(self._unpacked.path)

    @cached_property
    def _unpacked(self) -> TemporaryDirectory:
        from tfos_ml.common.directories import TemporaryDirectory

        directory = TemporaryDirectory("model")
        self.unpack(directory.path)
        return directory

    def _open(self) -> tarfile.TarFile:
        return tarfile.open(fileobj=io.BytesIO(self.content))


def pack(directory: str, destination: Path) -> Path:
    """One uncompressed tar file with the content of `directory`, made in `destination`.

    The same content makes the same bytes, whenever, wherever and by whom it was written: models are
    identified by the hash of this file.
    """
    archive = Path(destination) / "saved_model.tar"
    with tarfile.open(archive, "w", dereference=True) as tar:
        for path in sorted(Path(directory).rglob("*")):
            tar.add(path, path.relative_to(directory), recursive=False, filter=_content_only)
    return archive


def _content_only(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove what differs between copies of a file, such as owner and time."""
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def extract(tar: tarfile.TarFile, directory: Path) -> None:
    """Write the files and directories of an archive; nothing of their owners and rights.

    Not ``extractall(filter="data")``, which Python 3.10.0 to 3.10.11 and 3.11.0 to 3.11.3 do not have. Raises
    ``ModelError`` if a member is neither file nor directory, or is named to lie outside of `directory`, and
    ``TarError`` for a damaged archive.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for member in tar:
        path = directory / _relative_path(member)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        source = tar.extractfile(member)
        assert source is not None  # since it is a file
        with source, open(path, "xb") as target:
            shutil.copyfileobj(source, target)


def _relative_path(member: tarfile.TarInfo) -> PurePosixPath:
    """Where a member is written; links are refused, so the name decides."""
    path = PurePosixPath(member.name)
    if not (member.isfile() or member.isdir()) or path.is_absolute() or ".." in path.parts:
        raise _model_error(
            f"The packed model holds {member.name!r}, and a SavedModel consists of only files and directories within "
            "it. Use the SavedModel as TensorFlow or Keras has exported it."
        )
    return path


# On an executor


def unpacked(artifact: Artifact) -> Path:
    """The directory of a SavedModel that traveled as `artifact`; on an executor.

    Raises ``ModelError`` if there is no room for it, it arrived damaged, or another process has held the lock for more
    than five minutes.
    """
    from pyspark import SparkFiles

    model = Path(SparkFiles.get(FOLDER)) / artifact.name
    with _one_thread:
        if model not in _in_use:
            _in_use[model] = _enter(artifact, model)
        _in_use.move_to_end(model)
        while len(_in_use) > LOADED_MODELS:
            _in_use.popitem(last=False)[1].close()
    return model


def repair(artifact: Artifact) -> None:
    """Unpack a model again if the unpacked copy differs from what was sent; raises as :func:`unpacked`."""
    model = unpacked(artifact)
    with _locked(model.parent):
        if not _is_copy(model, artifact, compare_content=True):
            _replace(model, artifact)


def _enter(artifact: Artifact, model: Path) -> IO[bytes]:
    """Unpack a model if it is not there or not whole; returns the lock that keeps it there."""
    with _locked(model.parent):
        users = open(_users_of(model), "ab")  # noqa: SIM115  (held as long as the model is in use)
        try:
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.utime(users.fileno())
            if not _is_copy(model, artifact):
                _delete_unused(model.parent)
                _replace(model, artifact)
        except BaseException:
            users.close()
            raise
    return users


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock without which no process adds or deletes models."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_TIMEOUT
    with open(folder / _LOCK, "ab") as file:
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise _model_error(
                    f"Another process has held {folder / _LOCK} for {LOCK_TIMEOUT:g} s. End it: "
                    f"it is one of those that `fuser {folder / _LOCK}` lists on this host."
                )
            time.sleep(_LOCK_POLL)
        yield


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _users_of(model: Path) -> Path:
    return model.with_name(f"{model.name}{_USERS}")


def _is_copy(model: Path, artifact: Artifact, compare_content: bool = False) -> bool:
    """Whether all files are there in the size, or with the content, that was sent."""
    try:
        with tarfile.open(artifact.path()) as tar:
            return all(_is_same(tar, member, model / member.name, compare_content) for member in tar)
    except (OSError, tarfile.TarError):
        return False


def _is_same(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, compare_content: bool) -> bool:
    if not member.isfile():
        return path.exists()
    if not path.is_file() or path.stat().st_size != member.size:
        return False
    sent = tar.extractfile(member)
    if not compare_content or sent is None:
        return True
    with sent, open(path, "rb") as unpacked:
        return all(sent.read(_CHUNK) == unpacked.read(_CHUNK) for _ in range(0, member.size, _CHUNK))


def _replace(model: Path, artifact: Artifact) -> None:
    """Unpack a model into its place; the caller holds the lock."""
    partial = model.with_name(f"{_PARTIAL}{model.name}")
    try:
        with tarfile.open(artifact.path()) as tar:
            extract(tar, partial)
        shutil.rmtree(model, ignore_errors=True)
        partial.rename(model)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, tarfile.TarError):
            raise _model_error(f"The model in {artifact.path()} did not arrive whole: {error}.") from None
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _model_error(
                f"There is no room in {model.parent} for a model of {artifact.path().stat().st_size >> 20} MiB: "
                f"{error}. Have executors work on a larger disk (in local mode spark.local.dir)."
            ) from None
        raise


def _delete_unused(folder: Path) -> None:
    """Delete models that no process uses, except those used last; the caller holds the lock."""
    for partial in folder.glob(f"{_PARTIAL}*"):  # of processes that were killed
        shutil.rmtree(partial, ignore_errors=True)
    unused = []
    for file in folder.glob(f"*{_USERS}"):
        with open(file, "ab") as users:
            if _try_lock(users):
                unused.append((os.fstat(users.fileno()).st_mtime, file))
    for _, file in sorted(unused, reverse=True)[UNUSED_MODELS:]:
        shutil.rmtree(file.with_name(file.name.removesuffix(_USERS)), ignore_errors=True)
        file.unlink()


def _model_error(message: str) -> Exception:
    from tfos_ml.errors import ModelError  # which imports pyspark, and packing and unpacking do without

    return ModelError(message)
