"""What a host has for nodes: room in shared memory and on disk, memory, and a name that resolves."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfos_ml.common.cgroup import memory_headroom
from tfos_ml.data.spool import DISK_RESERVE, MEMORY_RESERVE, SHARED_MEMORY, disk_root
from tfos_ml.doctor.deadline import OutOfTimeError, within
from tfos_ml.doctor.finding import Finding, failed, ok, warning

RESOLVE_SECONDS = 5.0
LEAST_MEMORY = 1 << 30  # TensorFlow and Keras hold 0.5 GB once imported
LEAST_SHARED = 64 << 20
_GIB = 1 << 30


@dataclass(frozen=True)
class Room:
    """A directory for rows: bytes that are free, and why nothing can be written (empty if it can)."""

    path: str
    free: int
    problem: str


@dataclass(frozen=True)
class HostFacts:
    """What was found on one host."""

    host: str
    shared: Room
    local: Room
    temporary: Room
    memory: int  # bytes that processes may still take
    memory_limit: str  # who says so


def look_at_host() -> HostFacts:
    """Look at this host."""
    available = psutil.virtual_memory().available
    headroom = memory_headroom()
    limited = headroom is not None and headroom < available
    return HostFacts(
        host=socket.gethostname(),
        shared=_room(SHARED_MEMORY),
        local=_room(disk_root()),
        temporary=_room(Path(tempfile.gettempdir())),
        memory=headroom if limited and headroom is not None else available,
        memory_limit="the control group's limit" if limited else "free memory",
    )


def _room(directory: Path) -> Room:
    """Bytes free in a directory, once a file has been written there."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"tfos_ml" * 1000)
            file.flush()
        return Room(str(directory), shutil.disk_usage(directory).free, "")
    except OSError as error:
        return Room(str(directory), 0, f"nothing can be written to {directory}: {error.strerror or error}")


def judge_hosts(hosts: Iterable[HostFacts], where: str) -> list[Finding]:
    """Findings about some hosts, the worst of each kind; `where` is part of the lines' names."""
    hosts = list(hosts)
    return [
        _shared_memory(min(hosts, key=lambda host: host.shared.free), where),
        _local_directory(min(hosts, key=lambda host: min(host.local.free, host.temporary.free)), where),
        _memory(min(hosts, key=lambda host: host.memory), where),
    ]


def _shared_memory(host: HostFacts, where: str) -> Finding:
    check, room = f"Shared memory, {where}", host.shared
    advice = (
        "Rows go to spark.local.dir, which is slower. In a container give it more (docker run --shm-size 4g; "
        "Kubernetes: an emptyDir with medium: Memory at /dev/shm)."
    )
    if room.problem:
        return warning(check, f"{room.problem} ({host.host})", advice)
    said = f"{room.path} has {_size(room.free)} free ({host.host})"
    if room.free < LEAST_SHARED:
        return failed(check, said, f"TensorFlow and scoring need some; delete what others left there. {advice}")
    if room.free < 2 * MEMORY_RESERVE:
        return warning(check, said, advice)
    return ok(check, said)


def _local_directory(host: HostFacts, where: str) -> Finding:
    check = f"Local directories, {where}"
    for room, setting in ((host.local, "spark.local.dir (SPARK_LOCAL_DIRS)"), (host.temporary, "TMPDIR")):
        advice = f"Have {setting} name a directory on a disk with room that this user may write to."
        if room.problem:
            return failed(check, f"{room.problem} ({host.host})", advice)
        if room.free < 2 * DISK_RESERVE:
            said = f"{room.path} has {_size(room.free)} free ({host.host}), {_size(DISK_RESERVE)} are kept in reserve"
            return failed(check, said, advice)
    return ok(check, f"{host.local.path} has {_size(host.local.free)} free ({host.host})")


def _memory(host: HostFacts, where: str) -> Finding:
    check, said = f"Memory, {where}", f"{_size(host.memory)} left by {host.memory_limit} ({host.host})"
    advice = (
        "Each node's process takes 0.5 GB and its model. Raise spark.executor.memoryOverhead or the container's limit."
    )
    if host.memory < LEAST_MEMORY:
        return failed(check, said, advice)
    return warning(check, said, advice) if host.memory < 2 * LEAST_MEMORY else ok(check, said)


def _size(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size >> 20} MiB"


def check_names(driver_host: str | None) -> list[Finding]:
    """Whether this host's name resolves, and the one of ``spark.driver.host`` if it is set."""
    mine = socket.gethostname()
    named = os.environ.get("SPARK_LOCAL_HOSTNAME") or os.environ.get("SPARK_LOCAL_IP")
    own = _resolved(mine, "Add its address to /etc/hosts, or set SPARK_LOCAL_IP to the address that Spark is to use.")
    findings = [own] if not named or own.status == "ok" else [warning("Host name", own.said, "SPARK_LOCAL_IP is used.")]
    if driver_host:
        advice = "Set spark.driver.host to a name or address of this host that the executors reach, or unset it."
        found = _resolved(driver_host, advice)
        findings.append(Finding("spark.driver.host", found.status, found.said, found.advice))
    return findings


def _resolved(name: str, advice: str) -> Finding:
    try:
        found = within(RESOLVE_SECONDS, lambda: socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_STREAM))
    except (OSError, OutOfTimeError) as error:
        return failed("Host name", f"{name} does not resolve: {error}", advice)
    return ok("Host name", f"{name} is {', '.join(sorted({str(one[4][0]) for one in found}))}")
