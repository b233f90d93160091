"""``python -m tfos_ml doctor`` and ``python -m tfos_ml pack``; :func:`main` runs them in a program."""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Sequence

from tfos_ml.doctor import command as doctor
from tfos_ml.pack import command as pack


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = argparse.ArgumentParser(prog="python -m tfos_ml", description="Command line of tfos_ml.")
    commands = whole.add_subparsers(dest="command", required=True)
    doctor.add_command(commands)
    pack.add_command(commands)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that is named; returns its exit code.

    In a program with a Spark session, a notebook say, ``doctor`` looks at that session, and leaves it running.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; by default those of this process.

    Examples
    --------
    >>> from tfos_ml.__main__ import main
    >>> main(["doctor", "--nodes", "2"])                            # doctest: +SKIP
    0
    """
    arguments = parser().parse_args(argv)
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    code = main()
    if any(thread.name.startswith("tfos_ml-doctor") for thread in threading.enumerate()):
        os._exit(code)  # a check that had no time left still waits, and gRPC would wait for it
    raise SystemExit(code)
