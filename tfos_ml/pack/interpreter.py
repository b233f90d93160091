"""Finds the files of an interpreter that an archive can carry, so that executors need none."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfos_ml.errors import PackedEnvironmentError

DIRECTORY = "python"  # of the interpreter, in the archive
_ABOUT = (
    "import json, platform, sys, sysconfig; "
    "print(json.dumps(['%d.%d' % sys.version_info[:2], sys.base_prefix, sysconfig.get_path('stdlib'), "
    "platform.machine()]))"
)
# Of the standard library: packages, tests, what writes windows or builds programs, and what needs the network's NIS.
_LEFT_OUT = re.compile(
    r"^(site-packages|idlelib|tkinter|turtledemo|ensurepip|config-[^/]*)/|(^|/)(__pycache__|tests?)/"
    r"|^lib-dynload/(_tkinter|nis|_test|_ctypes_test|xx)|\.a$"
)
_LIBRARY = re.compile(r"^\s*(\S+) => (/\S+) \(0x", re.MULTILINE)  # as ldd prints it
_OF_GLIBC = re.compile(r"^(libc|libm|libpthread|libdl|librt|libutil|libresolv|ld-linux[^.]*)\.so")
_GLIBC_SYMBOL = re.compile(rb"\bGLIBC_2\.(\d+)\b")


@dataclass(frozen=True)
class Interpreter:
    """An interpreter: its minor version, where it is installed, and for which machines it is."""

    version: str
    prefix: Path
    library: Path
    machine: str


def interpreter(python: str) -> Interpreter:
    """What an interpreter says of itself.

    Raises
    ------
    PackedEnvironmentError
        If it cannot be run.
    """
    try:
        done = subprocess.run([python, "-c", _ABOUT], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PackedEnvironmentError(f"--python={python} cannot be run: {error}. Name a Python interpreter.") from error
    version, prefix, library, machine = json.loads(done.stdout)
    return Interpreter(version, Path(prefix), Path(library), machine)


def files_of_interpreter(found: Interpreter) -> list[tuple[str, Path]]:
    """Its files by their names in the archive: the program, the standard library, and the libraries of both.

    The libraries are those that ``ldd`` finds, but for those of glibc.

    Raises
    ------
    PackedEnvironmentError
        If it is one of the system's, or otherwise not in a directory of its own.
    """
    program = found.prefix / "bin" / f"python{found.version}"
    standard = found.prefix / "lib" / f"python{found.version}"
    if found.prefix == Path("/usr") or found.library != standard or not program.is_file():
        raise PackedEnvironmentError(
            f"--with-python packs a Python in a directory of its own, as pyenv or uv install it. This one is in "
            f"{found.prefix}, with its library in {found.library}. Make an environment with such a Python "
            f"{found.version} and pack there, or name it with --fresh --python; without --with-python the executors "
            f"need a Python {found.version}."
        )
    kept = [(name, path) for name, path in _below(standard) if not _LEFT_OUT.search(name)]
    binaries = [program, *(path for _, path in kept if path.suffix == ".so")]
    return [
        (f"{DIRECTORY}/bin/{program.name}", program.resolve()),
        *((f"{DIRECTORY}/lib/{standard.name}/{name}", path.resolve()) for name, path in kept),
        *((f"{DIRECTORY}/lib/{name}", path.resolve()) for name, path in _libraries(binaries).items()),
    ]


def least_glibc(files: Iterable[Path]) -> int:
    """The second number of the oldest glibc that has what these programs and libraries call; 0: any."""
    binaries = (path.read_bytes() for path in files if ".so" in path.name or path.parent.name == "bin")
    return max((int(minor) for content in binaries for minor in _GLIBC_SYMBOL.findall(content)), default=0)


def _below(directory: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.relative_to(directory).as_posix(), path


def _libraries(binaries: list[Path]) -> dict[str, Path]:
    """Shared libraries outside of glibc that programs and libraries need, by the names under which they are loaded."""
    try:
        done = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PackedEnvironmentError(
            f"--with-python needs ldd to find the libraries of Python: {error}. Pack on a Linux with glibc."
        ) from error
    return {name: Path(path) for name, path in _LIBRARY.findall(done.stdout) if not _OF_GLIBC.match(name)}
