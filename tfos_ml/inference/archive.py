"""SavedModels as tar files: packed on a node or on the driver, fetched from a URI, unpacked once per executor.

The tar file is sent to executors as a Spark artifact. The first Python worker that needs the model unpacks it into
``tfos_ml-models`` beside the tar file. Spark deletes both with the session or the application. The directory has:

==================================  ==========================================================
``<hash of the tar file>/``         a model
``<hash of the tar file>.users``    each process that uses the model holds a shared lock on it
``.lock``                           a process that adds or deletes a model holds a lock on it
==================================  ==========================================================

The locks are made with ``flock``; the kernel releases them when a process ends. A process that adds a model deletes the
models that no process uses, except for the last ``UNUSED_MODELS``.

Spark can unpack archives itself (``addArtifacts(archive=True)``). But it does so on every executor before the next task
of any job, keeps them until the end, and does not check the result. It also does not do so for streaming queries on
Spark Connect, whose sessions have no artifacts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
from typing import IO, TYPE_CHECKING, Any

from tfos_ml.common.timeouts import UNPACK_SECONDS

if TYPE_CHECKING:
    from tfos_ml.common.directories import TemporaryDirectory
    from tfos_ml.common.local_files import LocalFile
    from tfos_ml.protocol.artifacts import Artifact

FOLDER = "tfos_ml-models"
LOADED_MODELS = 4
"""Number of models that a process uses at a time; more replace those used least recently."""
UNUSED_MODELS = 4
_LOCK, _USERS, _PARTIAL = ".lock", ".users", ".partial-"
_LOCK_POLL = 0.02

_in_use: OrderedDict[Path, IO[bytes]] = OrderedDict()
"""Models that this process uses, with their locks."""
_one_thread = threading.Lock()


class Archive:
    """A packed SavedModel in a file, which is deleted with this object; copies of a ``TFModel`` share it.

    `file` is a tar file as of :func:`pack`. If the model was fetched, `source` has its URI, and the result of
    :func:`tfos_ml.inference.publishing.listing` at that time.
    """

    def __init__(self, file: LocalFile, source: tuple[str, object] | None = None):
        self.file = file
        self._source = source

    @classmethod
    def of(cls, directory: str | Path, source: tuple[str, object] | None = None) -> Archive:
        """Pack the SavedModel in a local directory."""
        from tfos_ml.common.local_files import FileWriter

        writer = FileWriter()
        _write(Path(directory), writer)
        return cls(writer.finish(), source)

    @classmethod
    def fetch(cls, uri: str) -> Archive:
        """Fetch the SavedModel at a URI; raises as :func:`tfos_ml.inference.publishing.fetch`."""
        from tfos_ml.common.directories import owned_prefix
        from tfos_ml.inference import publishing

        with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
            listing = publishing.fetch(uri, f"{directory}/saved_model")
            return cls.of(f"{directory}/saved_model", (uri, listing))

    @property
    def is_fetched(self) -> bool:
        """Whether the model was fetched from a URI, and so can be fetched again."""
        return self._source is not None

    def is_current(self) -> bool:
        """Whether the files at the URI still have the same sizes and times; true if the model was not fetched."""
        from tfos_ml.inference import publishing

        return self._source is None or publishing.listing(self._source[0]) == self._source[1]

    def member(self, name: str) -> bytes | None:
        """The content of a small file in the directory of the SavedModel; None if it does not exist."""
        with self._open() as tar:
            if name not in tar.getnames():
                return None
            file = tar.extractfile(name)
            return file.read() if file else None

    def member_file(self, name: str) -> LocalFile | None:
        """A copy of a file in the directory of the SavedModel; None if it does not exist."""
        from tfos_ml.common.local_files import FileWriter

        with self._open() as tar:
            file = tar.extractfile(name) if name in tar.getnames() else None
            if file is None:
                return None
            writer = FileWriter()
            shutil.copyfileobj(file, writer)
            return writer.finish()

    def unpack(self, directory: str | Path) -> None:
        """Write all files to a directory; raises as :func:`extract`."""
        with self._open() as tar:
            extract(tar, Path(directory))

    @property
    def directory(self) -> str:
        """A local directory with the SavedModel; it is deleted with this object."""
        return str(self._unpacked.path)

    @cached_property
    def _unpacked(self) -> TemporaryDirectory:
        from tfos_ml.common.directories import TemporaryDirectory

        directory = TemporaryDirectory("model")
        self.unpack(directory.path)
        return directory

    def _open(self) -> tarfile.TarFile:
        return tarfile.open(self.file.path, mode="r:")


def pack(directory: str, destination: Path) -> Path:
    """Write the content of `directory` to an uncompressed tar file in the directory `destination`.

    The same content always makes the same bytes, because models are identified by the hash of this file.
    """
    archive = Path(destination) / "saved_model.tar"
    with open(archive, "wb") as file:
        _write(Path(directory), file)
    return archive


def _write(directory: Path, file: Any) -> None:
    with tarfile.open(fileobj=file, mode="w", dereference=True) as tar:
        for path in sorted(directory.rglob("*")):
            tar.add(path, path.relative_to(directory), recursive=False, filter=_content_only)


def _content_only(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove metadata, such as owner and time, that differs between copies of a file."""
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def extract(tar: tarfile.TarFile, directory: Path) -> None:
    """Write the files and directories of an archive, without their owners and permissions.

    Python 3.10.0 to 3.10.11 and 3.11.0 to 3.11.3 lack ``extractall(filter="data")``. Raises ``ModelError`` if a member
    is neither a file nor a directory, or has a path outside of `directory` or of another member. Raises ``TarError``
    if the archive is damaged.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for member in _members(tar):
        try:
            _extract_member(tar, member, directory / _relative_path(member))
        except (FileExistsError, NotADirectoryError):  # it is the directory itself, or another member
            raise _unexpected(member) from None


def _extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None  # because it is a file
    with source, open(path, "xb") as target:
        shutil.copyfileobj(source, target)


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of an archive; what tarfile makes of damaged numbers and names is a ``TarError``, too."""
    try:
        yield from tar
    except (ValueError, OverflowError, EOFError) as error:
        raise tarfile.ReadError(str(error)) from None


def _relative_path(member: tarfile.TarInfo) -> PurePosixPath:
    """The path of a member below the directory. Links are refused, so the name is enough to check it."""
    path = PurePosixPath(member.name)
    if not (member.isfile() or member.isdir()) or member.issparse() or path.is_absolute() or ".." in path.parts:
        raise _unexpected(member)
    return path


def _unexpected(member: tarfile.TarInfo) -> Exception:
    return _model_error(
        f"The packed model contains {member.name!r}, but a SavedModel has only files and directories below its own, "
        "each once. Use a SavedModel that TensorFlow or Keras has exported."
    )


# On an executor


def unpacked(artifact: Artifact) -> Path:
    """The directory of the SavedModel of an artifact, unpacked if it is not yet; runs on an executor.

    Raises ``ModelError`` if the disk is full, the artifact is damaged, or another process holds the lock for more than
    five minutes.
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


def unpack_again(artifact: Artifact) -> None:
    """Replace the files of a model, because TensorFlow cannot load it; raises as :func:`unpacked`."""
    model = unpacked(artifact)
    with _locked(model.parent):
        _replace(model, artifact)


def _enter(artifact: Artifact, model: Path) -> IO[bytes]:
    """Unpack a model if it is missing or incomplete; returns the file whose lock keeps the model from being deleted."""
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
    """Hold the lock for adding and deleting models."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + UNPACK_SECONDS
    with open(folder / _LOCK, "ab") as file:
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise _model_error(
                    f"Another process has held the lock {folder / _LOCK} for {UNPACK_SECONDS:g} s. End that process: "
                    f"`fuser {folder / _LOCK}` on this host lists the candidates."
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


def _is_copy(model: Path, artifact: Artifact) -> bool:
    """Whether all files exist with the size that they have in the artifact."""
    try:
        with tarfile.open(artifact.path(), "r:") as tar:
            return all((model / m.name).stat().st_size == m.size for m in tar if m.isfile())
    except (OSError, tarfile.TarError):
        return False


def _replace(model: Path, artifact: Artifact) -> None:
    """Unpack a model, and replace its directory; the caller holds the lock."""
    partial = model.with_name(f"{_PARTIAL}{model.name}")
    try:
        with tarfile.open(artifact.path(), "r:") as tar:
            extract(tar, partial)
        shutil.rmtree(model, ignore_errors=True)
        partial.rename(model)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, tarfile.TarError):
            raise _model_error(f"The model in {artifact.path()} is damaged or incomplete: {error}.") from None
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _model_error(
                f"The disk of {model.parent} has no room for a model of {artifact.path().stat().st_size >> 20} MiB: "
                f"{error}. Put the work directory of executors (in local mode spark.local.dir) on a larger disk."
            ) from None
        raise


def _delete_unused(folder: Path) -> None:
    """Delete the models that no process uses, except for the most recent; the caller holds the lock."""
    for partial in folder.glob(f"{_PARTIAL}*"):  # left by processes that were killed
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
    from tfos_ml.errors import ModelError  # which imports pyspark; packing and unpacking do not need it

    return ModelError(message)
