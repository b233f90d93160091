"""Virtual environments for the libraries we measure ourselves beside, made once and kept.

What both sides use has the version that this interpreter has, so that only the library differs.

    python benchmarks/peers.py tensorflowonspark [--directory ~/.cache/tfos_ml-benchmarks]
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

DIRECTORY = Path("~/.cache/tfos_ml-benchmarks")
SHARED = ("numpy", "pandas", "pyarrow", "pyspark", "tensorflow")


@dataclasses.dataclass(frozen=True)
class Peer:
    """What pip is to install: `package` without, `beside` with its dependencies; and `shared` in our versions."""

    package: str
    beside: tuple[str, ...] = ()
    shared: tuple[str, ...] = SHARED

    def requirements(self) -> list[str]:
        """`beside`, and what both sides use."""
        return [*self.beside, *(f"{name}=={version(name)}" for name in self.shared)]


PEERS = {
    # It imports pkg_resources, which newer setuptools lack, and six, of which it does not tell pip.
    "tensorflowonspark": Peer("tensorflowonspark==2.2.5", ("tf-keras", "packaging", "setuptools<80", "six")),
    "torch": Peer(
        "torch==2.13.0", ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec"), ("numpy",)
    ),
}


def python_of(name: str, directory: Path = DIRECTORY) -> Path:
    """Python of the peer's environment, which is made unless a complete one is there.

    Parameters
    ----------
    name : str
        One of `PEERS`.
    directory : Path
        Where environments are kept.

    Raises
    ------
    subprocess.CalledProcessError
        If pip fails; what it said is on stderr.
    """
    peer = PEERS[name]
    requirements = peer.requirements()
    facts = "\n".join([sys.version, peer.package, *requirements])
    home = directory.expanduser() / f"{name}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"
    python, complete = home / "bin" / "python", home / "complete"
    if not complete.exists():
        venv.create(home, clear=True, with_pip=True)
        _pip_install(python, *requirements)
        _pip_install(python, "--no-deps", peer.package)
        complete.write_text(facts)
    return python


def _pip_install(python: Path, *arguments: str) -> None:
    """Install, with what pip has to say on stderr: stdout is for figures."""
    subprocess.run([python, "-m", "pip", "install", "--quiet", *arguments], check=True, stdout=sys.stderr)


def main() -> None:
    """Print the path of a peer's Python."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=list(PEERS))
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    arguments = parser.parse_args()
    print(python_of(arguments.peer, arguments.directory))


if __name__ == "__main__":
    main()
