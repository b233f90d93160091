"""Writes an archive: its manifest, ``bin/python``, and the files of distributions that a run needs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import tfos_ml
from tfos_ml.common.packed_environment import MANIFEST
from tfos_ml.errors import DestinationError, PackedEnvironmentError
from tfos_ml.pack.environment import files_of
from tfos_ml.pack.interpreter import Interpreter

GZIP_LEVEL = 4
SUFFIXES = (".tar.gz", ".tgz")  # of what Spark unpacks on executors and takes from clients of Connect
CARRIED = "Python"  # among the sizes of packages
# What compilers, type checkers and tests of the packages read; TensorFlow requires libclang, and does not import it.
_LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|tests)/|^(tensorflow|pyarrow|numpy/_core)/include/|^(pyarrow/src|clang)/|\.(pyi|pyx|pxd|h|hpp|cc|cpp|a)$"
    r"|\.dist-info/(RECORD|direct_url\.json)$"
)
_TAG = re.compile(r"^Tag: \S+-\S+-(?:manylinux(?:_2_(\d+)|(\d+))|linux)_(\w+)$", re.MULTILINE)
_OLD_TAGS = {"1": 5, "2010": 12, "2014": 17}


@dataclass
class Packed:
    """What an archive holds."""

    python: str  # minor version of Python that it is for
    machine: str = ""  # of the hosts that it runs on, as "x86_64"; empty: any
    glibc: str = ""  # second number of the oldest that they may have; empty: any
    size: int = 0  # bytes of the archive
    files: int = 0
    unpacked: int = 0  # bytes of the files
    left_out: int = 0  # bytes that no run needs
    by_package: Counter[str] = field(default_factory=Counter)  # bytes of each distribution


def write(
    archive: Path,
    distributions: Sequence[metadata.Distribution],
    python: Interpreter,
    carried: Sequence[tuple[str, Path]],
    everything: bool,
) -> Packed:
    """Write the archive, which is there as a whole or not at all.

    `carried` are files of the interpreter; if there are none, executors need one. Raises ``DestinationError`` if it
    cannot be written, and ``PackedEnvironmentError`` if its packages are for machines of several kinds.
    """
    machine, glibc = _platform(distributions)
    machine = machine or (python.machine if carried else "")
    packed = Packed(python.version, machine, str(glibc or ""))
    versions = {one.name: one.version for one in distributions}
    manifest = {"python": packed.python, "machine": machine, "glibc": packed.glibc, "packages": versions}
    script = Path(__file__).with_name("python.sh").read_text()
    for name, value in {"PYTHON": packed.python, "MACHINE": machine, "GLIBC": packed.glibc}.items():
        script = script.replace(f"@{name}@", value)
    partial = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        with tarfile.open(partial, "w:gz", compresslevel=GZIP_LEVEL) as tar:
            _add_text(tar, MANIFEST, json.dumps({**manifest, "tfos_ml": tfos_ml.__version__}, indent=1), 0o644)
            _add_text(tar, "bin/python", script, 0o755)
            for name, path in carried:
                _add(tar, packed, name, path, CARRIED)
            for name, path, package in files_of(distributions):
                if everything or not _is_left_out(packed, name, path):
                    _add(tar, packed, f"site-packages/{name}", path, package)
        packed.size = partial.stat().st_size
        os.replace(partial, archive)
    except OSError as error:
        raise DestinationError(f"{archive} cannot be written: {error}. Name another file.") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    return packed


def _is_left_out(packed: Packed, name: str, path: Path) -> bool:
    """Whether no run needs the file; counts its bytes then."""
    if not _LEFT_OUT.search(name):
        return False
    packed.left_out += path.stat().st_size if path.exists() else 0
    return True


def _add(tar: tarfile.TarFile, packed: Packed, name: str, path: Path, package: str) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:  # listed, and not there: what pip has compiled for another Python
        return
    member = tar.gettarinfo(str(path), name)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode |= 0o444  # of other users, as Spark's executors may be
    if member.isreg():
        with path.open("rb") as content:
            tar.addfile(member, content)
    else:
        tar.addfile(member)
    packed.files += 1
    packed.unpacked += size
    packed.by_package[package] += size


def _add_text(tar: tarfile.TarFile, name: str, text: str, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(text.encode()), mode, int(time.time())
    tar.addfile(member, io.BytesIO(text.encode()))


def _platform(distributions: Iterable[metadata.Distribution]) -> tuple[str, int]:
    """Kind of machine and least glibc, as the distributions' own tags tell; empty and 0 if all are pure Python."""
    machines: dict[str, str] = {}
    minors = []
    for one in distributions:
        tags = _TAG.findall(one.read_text("WHEEL") or "")
        machines |= {machine: one.name for _, _, machine in tags}
        needs = [int(minor) if minor else _OLD_TAGS.get(old, 0) for minor, old, _ in tags]
        minors += [min(needs)] if needs else []
    if len(machines) > 1:
        raise PackedEnvironmentError(
            "The packages are for machines of several kinds: "
            f"{', '.join(f'{name} for {machine}' for machine, name in machines.items())}. Pack with --fresh."
        )
    return next(iter(machines), ""), max(minors, default=0)
