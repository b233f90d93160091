"""How much memory the control groups of this process leave it (Linux, cgroups(7), version 1 and 2).

A limit of any group on the path from the process's own up to the root counts. Containers see
a part of that path, by whatever names their mounts and namespaces give it.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

PROC = Path("/proc/self")
SHORT_BYTES = 256 << 20


@dataclass(frozen=True)
class _Files:
    """What a version of control groups calls its files, and the entry of ``memory.stat`` that can be reclaimed."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: str


_V1 = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")


def memory_headroom(proc: Path = PROC) -> int | None:
    """Bytes until the nearest memory limit, cached files that the kernel can drop not counted; None without limit."""
    rooms = [room for files, directory in _groups(proc) if (room := _room(files, directory)) is not None]
    return min(rooms, default=None)


def is_memory_short() -> bool:
    """Whether so little is left that what is kept for later should go."""
    headroom = memory_headroom()
    return min(psutil.virtual_memory().available, headroom if headroom is not None else sys.maxsize) < SHORT_BYTES


def _groups(proc: Path) -> Iterator[tuple[_Files, Path]]:
    """The groups that may limit this process, from its own upwards."""
    for files, path in _memberships(proc):
        for root, mount in _mounts(proc, files):
            directory = _directory(path, root, mount)
            yield files, directory
            while directory != mount and _limits_children(directory.parent):
                directory = directory.parent
                yield files, directory


def _memberships(proc: Path) -> list[tuple[_Files, str]]:
    """The paths of the process's groups that may account memory."""
    found = []
    for line in _lines(proc / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append((_V1, path))
        elif number == "0" and not controllers:
            found.append((_V2, path))
    return found


def _mounts(proc: Path, files: _Files) -> list[tuple[str, Path]]:
    """Where such groups can be seen: which group is at the top, and where."""
    found = []
    for line in _lines(proc / "mountinfo"):
        fields, _, others = (part.split() for part in line.partition(" - "))
        kind, options = others[0], others[2].split(",")
        if kind == ("cgroup2" if files is _V2 else "cgroup") and (files is _V2 or "memory" in options):
            found.append((_unescaped(fields[3]), Path(_unescaped(fields[4]))))
    return found


def _directory(path: str, root: str, mount: Path) -> Path:
    """Where the group `path` is, below a mount that shows what is below `root`."""
    relative = os.path.relpath(path, root)
    if ".." in (*root.split("/"), *relative.split("/")):  # mounted in another namespace, which has other names
        return _found_by_process(mount, os.getpid())
    return mount / relative


@functools.lru_cache(maxsize=8)
def _found_by_process(mount: Path, pid: int) -> Path:
    """The group below `mount` that lists a process; `mount` itself if none does."""
    for directory, _, _ in os.walk(mount):
        if str(pid) in _lines(Path(directory) / "cgroup.procs"):
            return Path(directory)
    return mount


def _limits_children(group: Path) -> bool:
    """Whether a group's limit holds for the groups below it; in version 1 that could be turned off."""
    return _lines(group / "memory.use_hierarchy") != ["0"]


def _room(files: _Files, group: Path) -> int | None:
    """Bytes that a group leaves; None if it sets no limit."""
    statistics = dict(line.split(" ", 1) for line in _lines(group / "memory.stat") if " " in line)
    limits = [line for name in files.limits for line in _lines(group / name)]
    limits += [statistics[name] for name in ("hierarchical_memory_limit",) if name in statistics]  # of groups not shown
    used = _lines(group / files.usage)
    numbers = [int(limit) for limit in limits if limit.isdigit()]  # others say "max"
    if not numbers or not used:
        return None
    return min(numbers) - int(used[0]) + int(statistics.get(files.reclaimable, 0))


def _unescaped(text: str) -> str:
    """A path of ``mountinfo``, where blanks are octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
