"""SavedModels on an executor's host: extracted once, shared by all Python workers, then removed.

==================================  ==========================================================
``<tmp>/tfos_ml-<uid>/``            the cache of a user; another name if somebody else took it
``<hash of its content>/``          a model
``<hash of its content>.users``     locked, shared, by each process that uses the model
``.keeper``                         locked by the keeper as long as it runs
``.lock``                           locked by whoever changes anything in the cache
==================================  ==========================================================

All locks are ``flock``, which the kernel gives back however a process ends. Files of the cache are
deleted, ``.lock`` itself among them, only by the process that has locked ``.lock``. So whoever gets the lock
looks whether the file it has locked is still there, and otherwise begins anew; from then on nothing
disappears under its hands. A model is entered (``.users`` is locked) under ``.lock``, too, so one
that nobody uses then stays unused until ``.lock`` is free.

There is one *keeper* process (``python -m tfos_ml.inference.cache``) for all models of a cache. It deletes
models that nobody has used for ``UNUSED_SECONDS``, the least recently used when there are more than
``UNUSED_MODELS`` of these, and everything, itself included, when no process uses any model.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tfos_ml.common.directories import make_private, private_directory
from tfos_ml.common.interpreter import module_command, search_path
from tfos_ml.inference.archive import extract

if TYPE_CHECKING:
    from tfos_ml.protocol.artifacts import Artifact  # a keeper needs none of it

LOADED_MODELS = 4
"""Models that a process uses at a time; of more, those used last."""
UNUSED_MODELS, UNUSED_SECONDS = 4, 600.0
LOCK_TIMEOUT = 300.0
CHECK_SECONDS = 1.0
_LOCK, _KEEPER, _USERS, _PARTIAL = ".lock", ".keeper", ".users", ".partial-"
_LOCK_POLL = 0.02
_CHUNK = 1 << 20

_in_use: OrderedDict[str, tuple[Path, IO[bytes]]] = OrderedDict()
"""Models that this process uses, with their locks, by artifact name; a documented cache."""
_one_thread = threading.Lock()


def extracted(artifact: Artifact) -> Path:
    """The directory of a SavedModel that travelled as `artifact`; on an executor.

    Raises
    ------
    ModelError
        If there is no room for it, it arrived damaged, or another process has held the lock of the
        cache for more than five minutes.
    """
    with _one_thread:
        if artifact.name not in _in_use:
            _in_use[artifact.name] = _entered(artifact)
        _in_use.move_to_end(artifact.name)
        while len(_in_use) > LOADED_MODELS:
            _in_use.popitem(last=False)[1][1].close()
        return _in_use[artifact.name][0]


def repair(artifact: Artifact) -> None:
    """Extract a model again if the extracted copy differs from what was sent; raises as :func:`extracted`."""
    model = extracted(artifact)
    with _locked(model.parent, time.monotonic() + LOCK_TIMEOUT) as root:
        if root is not None and not _is_copy(model, artifact, compare_content=True):
            _extract(artifact, model)


def _entered(artifact: Artifact) -> tuple[Path, IO[bytes]]:
    """A model, extracted if it is not there or not whole, and the lock that keeps it there."""
    with _locked_cache() as root:
        model = root / artifact.name
        users = open(_users_file(model), "ab")  # noqa: SIM115  (held as long as the model is in use)
        try:
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.utime(users.fileno())
            _ensure_keeper(root)  # first: it clears away what a failure leaves
            if not _is_copy(model, artifact):
                _extract(artifact, model)
        except BaseException:
            users.close()
            raise
    return model, users


# The directory


@contextlib.contextmanager
def _locked_cache() -> Iterator[Path]:
    """The cache, locked; made if there is none."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while time.monotonic() < deadline:
        with _locked(_directory(), deadline) as root:
            if root is not None:
                yield root
                return
    raise _model_error(f"The directory for models in {tempfile.gettempdir()} was deleted again and again.")


@contextlib.contextmanager
def _locked(root: Path, deadline: float) -> Iterator[Path | None]:
    """A cache, locked; None if it has been deleted, or replaced, meanwhile."""
    try:
        file = open(root / _LOCK, "ab")  # noqa: SIM115
    except OSError as error:
        if not isinstance(error, FileNotFoundError) and _is_ours(root):
            raise _model_error(f"{root / _LOCK} cannot be written: {error}. Remove {root}, or set TMPDIR.") from None
        yield None
        return
    with file:
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise _model_error(
                    f"Another process has held {root / _LOCK} for {LOCK_TIMEOUT:g} s. End it: "
                    f"it is one of those that `fuser {root / _LOCK}` lists on this host."
                )
            time.sleep(_LOCK_POLL)
        yield root if _is_at(file, root / _LOCK) and _is_ours(root) else None


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except OSError:
        return False


def _directory() -> Path:
    """The cache of this user on this host; nobody else may write there, for models are programs."""
    parent = Path(tempfile.gettempdir())
    try:
        return private_directory(parent, f"tfos_ml-{os.getuid()}")
    except OSError as error:
        raise _model_error(f"There can be no directory for models in {parent}: {error}. Set TMPDIR.") from None


def _is_ours(root: Path) -> bool:
    """Whether a directory is one that only this user can write to."""
    try:
        return make_private(root)
    except FileNotFoundError:
        return False


# Models in it


def _users_file(model: Path) -> Path:
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
    with sent, open(path, "rb") as found:
        return all(sent.read(_CHUNK) == found.read(_CHUNK) for _ in range(0, member.size, _CHUNK))


def _extract(artifact: Artifact, model: Path) -> None:
    """Put a model in its place, with the cache locked."""
    partial = None
    try:
        partial = Path(tempfile.mkdtemp(dir=model.parent, prefix=_PARTIAL))
        with tarfile.open(artifact.path()) as tar:
            extract(tar, partial)
        _delete(model)
        partial.rename(model)
    except BaseException as error:
        if partial is not None:
            _delete(partial)
        if isinstance(error, tarfile.TarError):
            raise _model_error(f"The model in {artifact.path()} did not arrive whole: {error}.") from None
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _model_error(
                f"There is no room in {model.parent} for a model of {artifact.path().stat().st_size >> 20} MiB: "
                f"{error}. Set TMPDIR (spark.executorEnv.TMPDIR) to a directory on a larger disk."
            ) from None
        raise


def _model_error(message: str) -> Exception:
    from tfos_ml.errors import ModelError  # which imports pyspark

    return ModelError(message)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# The keeper


def _ensure_keeper(root: Path) -> None:
    """Start the keeper unless it runs; it inherits the lock that says so."""
    with open(root / _KEEPER, "ab") as file:
        if not _try_lock(file):
            return
        subprocess.Popen(
            module_command("tfos_ml.inference.cache", str(root), str(CHECK_SECONDS)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[file.fileno()],
            env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(search_path())},
        )


def keep(root: Path, seconds: float = CHECK_SECONDS) -> None:
    """Delete what is not used, every so many seconds, until nothing is left."""
    is_empty = False
    while not is_empty:
        time.sleep(seconds)
        with _locked(root, math.inf) as locked:
            is_empty = locked is None or _tidy(locked)


def _tidy(root: Path) -> bool:
    """Delete unused models, with the cache locked; whether nothing is left."""
    for partial in root.glob(f"{_PARTIAL}*"):
        _delete(partial)
    unused, is_used = [], False
    for file in root.glob(f"*{_USERS}"):
        with open(file, "ab") as users:
            if _try_lock(users):
                unused.append((os.fstat(users.fileno()).st_mtime, file))
            else:
                is_used = True
                os.utime(file)
    if not is_used:
        _delete_all(root)
        return True
    unused.sort(reverse=True)
    for number, (used_at, file) in enumerate(unused):
        if number >= UNUSED_MODELS or used_at < time.time() - UNUSED_SECONDS:
            _delete(root / file.name.removesuffix(_USERS))
            _delete(file)
    return False


def _delete_all(root: Path) -> None:
    """Delete a locked cache, the lock last."""
    for path in sorted(root.iterdir(), key=lambda p: p.name == _LOCK):
        _delete(path)
    with contextlib.suppress(OSError):  # somebody who saw no lock has made a new one
        root.rmdir()


if __name__ == "__main__":
    keep(Path(sys.argv[1]), float(sys.argv[2]))
