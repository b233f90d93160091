"""The memory that the control groups of this process leave it (Linux, cgroups(7), version 1 and 2)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

PROC, MOUNT = Path("/proc/self"), Path("/sys/fs/cgroup")
SHORT_BYTES = 256 << 20
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def memory_headroom(proc: Path = PROC, mount: Path = MOUNT) -> int | None:
    """Bytes until the nearest memory limit, without cached files that the kernel can drop; None without a limit.

    The limits of all groups from the process's own up to the top of the mount count.
    """
    groups = ((names, group) for names, top, path in _memberships(proc, mount) for group in _upwards(top, path))
    rooms = [room for names, group in groups if (room := _room(group, *names)) is not None]
    return min(rooms, default=None)


def is_memory_short() -> bool:
    """Whether so little memory is left that caches should be freed."""
    headroom = memory_headroom()
    return min(psutil.virtual_memory().available, headroom if headroom is not None else sys.maxsize) < SHORT_BYTES


def _memberships(proc: Path, mount: Path) -> Iterator[tuple[tuple[str, str, str], Path, str]]:
    """For each group that may limit memory: the names of its files, the top of its mount, and its path below that."""
    for line in _lines(proc / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield _V1, mount / "memory", path
        elif not controllers:
            yield _V2, mount, path


def _upwards(top: Path, path: str) -> list[Path]:
    """A group and those above it; only the top if a container does not see its group under the host's path."""
    group = top / path.strip("/")
    return [group, *(parent for parent in group.parents if parent.is_relative_to(top))] if group.is_dir() else [top]


def _room(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """Bytes that a group leaves; None if it sets no limit."""
    limits, used = _lines(group / limit), _lines(group / usage)
    if not used or not limits or not limits[0].isdigit():  # version 2 says "max"
        return None
    statistics = dict(line.split(" ", 1) for line in _lines(group / "memory.stat"))
    return int(limits[0]) - int(used[0]) + int(statistics.get(reclaimable, 0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
