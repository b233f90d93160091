"""SavedModels on an executor's host: extracted once, shared by all Python workers, then removed.

A model lives in ``<tmp>/tfos_ml-<uid>/<hash of its content>``. Every process that uses it holds
a shared ``flock`` on a file beside it, which the kernel gives back however the process ends.
A *keeper* process (``python -m tfos_ml.inference.cache``) waits until nobody holds it any
more, deletes the model and ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from filelock import FileLock

from tfos_ml.interpreter import module_command, search_path

if TYPE_CHECKING:
    from tfos_ml.artifacts import Artifact  # a keeper needs none of it

EXTRACT_TIMEOUT = 300.0

_in_use: dict[str, IO[bytes]] = {}
"""Locks this process holds, by artifact name, until it ends: a documented cache."""


def extracted(artifact: Artifact) -> Path:
    """The directory of a SavedModel that travelled as `artifact`; on an executor.

    Raises
    ------
    filelock.Timeout
        If another process has been extracting for more than five minutes.
    """
    root = _root()
    model = root / artifact.name
    if artifact.name in _in_use:
        return model
    with _lock(root):
        users = open(_users_file(model), "wb")  # noqa: SIM115  (held for the life of the process)
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not model.exists():
            _extract(artifact, model)
            _start_keeper(model)
        _in_use[artifact.name] = users
    return model


def _root() -> Path:
    """The cache of this user on this host; nobody else may write there, for models are programs."""
    root = Path(tempfile.gettempdir()) / f"tfos_ml-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        from tfos_ml.errors import ModelError

        raise ModelError(f"{root} belongs to, or can be written by, somebody else. Remove it, or set TMPDIR.")
    return root


def _lock(root: Path) -> FileLock:
    return FileLock(root / ".lock", timeout=EXTRACT_TIMEOUT)


def _users_file(model: Path) -> Path:
    return model.with_name(f"{model.name}.users")


def _extract(artifact: Artifact, model: Path) -> None:
    partial = Path(tempfile.mkdtemp(dir=model.parent, prefix=".partial-"))
    try:
        with tarfile.open(artifact.path()) as tar:
            tar.extractall(partial, filter="data")
        partial.rename(model)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _start_keeper(model: Path) -> None:
    subprocess.Popen(
        module_command("tfos_ml.inference.cache", str(model)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(search_path())},
    )


def keep(model: Path) -> None:
    """Wait until no process uses a model, then delete it."""
    while not _delete_unused(model):
        with open(_users_file(model), "rb") as users:
            fcntl.flock(users, fcntl.LOCK_EX)


def _delete_unused(model: Path) -> bool:
    root = model.parent
    lock = _lock(root)
    with lock:
        with open(_users_file(model), "rb") as users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            shutil.rmtree(model)
            _users_file(model).unlink()
        if os.listdir(root) == [".lock"]:
            os.unlink(lock.lock_file)
            with contextlib.suppress(OSError):  # somebody has begun to use it again
                root.rmdir()
    return True


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
