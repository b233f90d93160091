"""Directories inside those that all users of a host share, such as ``/tmp`` and ``/dev/shm``.

Each is named after the process that it belongs to, so that any process that finds one whose owner has
died may remove it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import tempfile
import weakref
import zlib
from collections.abc import Iterable
from pathlib import Path

from tfos_ml.common.pids import has_ended, start_mark

_OWNED = re.compile(r"tfos_ml-[a-z]+-(?P<host>[0-9a-f]{8})-(?P<pid>[0-9]{1,7})-(?P<start>[0-9a-f]{8})-")


def _host() -> str:
    """Eight digits that identify where pids and start times are valid: the host and its namespaces."""
    names = [socket.gethostname(), *(_namespace(kind) for kind in ("pid", "time"))]
    return f"{zlib.crc32('/'.join(names).encode()):08x}"


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # this kernel does not have this kind
        return ""


def create_owned(kind: str, root: Path) -> Path:
    """Make a directory of this process for a purpose, `kind` in lower case letters, that no other user may read."""
    return Path(tempfile.mkdtemp(prefix=owned_prefix(kind), dir=root))


def owned_prefix(kind: str) -> str:
    """The beginning of such a name. :func:`sweep` also removes what ``tempfile.TemporaryDirectory`` makes with it."""
    return f"tfos_ml-{kind}-{_host()}-{os.getpid()}-{start_mark(os.getpid())}-"


class TemporaryDirectory:
    """A temporary directory that is removed with this object, or by a later process if this one is killed.

    `kind` is that of :func:`create_owned`; what is left of dead processes is removed at once.
    """

    def __init__(self, kind: str):
        root = Path(tempfile.gettempdir())
        sweep([root])
        self.path = create_owned(kind, root)
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    """Remove a directory of this process; a fork of its owner leaves it alone."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def sweep(roots: Iterable[Path]) -> list[str]:
    """Remove this user's directories in `roots`, made by :func:`create_owned`, whose owner is dead; their paths."""
    dead = [path for root in set(roots) for path in _subdirectories(root) if _is_abandoned(path)]
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)
    return dead


def _subdirectories(root: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        return [entry.path for entry in entries if _OWNED.match(entry.name)]
    return []


def _is_abandoned(path: str) -> bool:
    name = _OWNED.match(os.path.basename(path))
    if name is None or name["host"] != _host() or not _is_ours(path):
        return False
    return has_ended(int(name["pid"]), name["start"])


def _is_ours(path: str) -> bool:
    """Whether it is a directory of this user."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
