"""Finds the files of an interpreter that an archive can carry, so that executors need none."""

from __future__ import annotations

import json
import re
import subprocess
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


@dataclass(frozen=True)
class Interpreter:
    """An interpreter: its minor version, where it is installed, and for which machines it is."""

    version: str
    prefix: Path
    library: Path
    machine: str


def interpreter(python: str) -> Interpreter:
    """What an interpreter says of itself; raises ``PackedEnvironmentError`` if it cannot be run."""
    try:
        done = subprocess.run([python, "-c", _ABOUT], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PackedEnvironmentError(f"--python={python} cannot be run: {error}. Name a Python interpreter.") from error
    version, prefix, library, machine = json.loads(done.stdout)
    return Interpreter(version, Path(prefix), Path(library), machine)


def files_of_interpreter(found: Interpreter) -> list[tuple[str, Path]]:
    """Its files by their names in the archive: the program, the standard library, and its own shared library.

    Libraries of the system, such as libssl, are not among them; a Python of python-build-standalone needs none. Raises
    ``PackedEnvironmentError`` if it is one of the system's, or otherwise not in a directory of its own.
    """
    program = found.prefix / "bin" / f"python{found.version}"
    standard = found.prefix / "lib" / f"python{found.version}"
    if found.prefix == Path("/usr") or found.library != standard or not program.is_file():
        raise PackedEnvironmentError(
            f"--with-python packs a Python in a directory of its own, as uv or pyenv install it. This one is in "
            f"{found.prefix}, with its library in {found.library}. Make an environment with such a Python "
            f"{found.version} and pack there, or name it with --fresh --python; without --with-python the executors "
            f"need a Python {found.version}."
        )
    modules = {path.relative_to(standard).as_posix(): path for path in sorted(standard.rglob("*")) if path.is_file()}
    libraries = sorted(standard.parent.glob("libpython*.so.*"))
    return [
        (f"{DIRECTORY}/bin/{program.name}", program.resolve()),
        *((f"{DIRECTORY}/lib/{standard.name}/{n}", p.resolve()) for n, p in modules.items() if not _LEFT_OUT.search(n)),
        *((f"{DIRECTORY}/lib/{path.name}", path.resolve()) for path in libraries),
    ]
